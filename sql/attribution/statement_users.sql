-- Who has run a statement that may have changed this role, according to pg_stat_statements? Not the statement, which may contain a
-- password. Of no use if it is more than one. `statistics_schema` stands for the extension's schema.
-- $1 text role
SELECT textsend(u.rolname::text) AS name
FROM pg_catalog.pg_roles AS u
WHERE u.oid IN (
    SELECT s.userid
    FROM statistics_schema.pg_stat_statements(true) AS s
    CROSS JOIN LATERAL (
        SELECT lower(encode(substring(textsend(s.query) FOR 4096), 'escape')) AS query
    ) AS q
    CROSS JOIN LATERAL (SELECT lower(encode(textsend(replace($1, '"', '""')), 'escape')) AS spelt) AS a
    WHERE q.query ~ '\m((alter|create|drop)\s+(role|user|group)|grant|revoke|comment\s+on\s+role)\M'
      AND q.query ~ ('(^|[^a-z0-9_$\\])' || regexp_replace(a.spelt, '([^a-z0-9_])', '\\\1', 'g') || '($|[^a-z0-9_$\\])')
)
  AND u.rolname <> session_user
ORDER BY 1
LIMIT 2
