-- Which sessions ran a statement in the last minute that may have changed these roles? The result omits the statement, which
-- may contain a password. Only superusers and members of pg_read_all_stats see other roles' statements.
-- Names and statements are compared as bytes: they may be in the encodings of other databases.
-- $1 text[] roles
SELECT DISTINCT
    a.name AS role, textsend(s.usename::text) AS usename, s.application_name, coalesce(host(s.client_addr), '') AS address
FROM pg_catalog.pg_stat_activity AS s
CROSS JOIN LATERAL (SELECT lower(encode(substring(textsend(s.query) FOR 4096), 'escape')) AS query) AS q
CROSS JOIN LATERAL (
    SELECT r.name, lower(encode(textsend(replace(r.name, '"', '""')), 'escape')) AS spelt FROM unnest($1::text[]) AS r (name)
) AS a
WHERE s.pid <> pg_backend_pid()
  AND s.usename IS NOT NULL
  -- the controller's other sessions; one of another cluster has another address
  AND NOT (s.usename = session_user AND s.application_name LIKE 'pgrole-controller %'
           AND s.client_addr IS NOT DISTINCT FROM inet_client_addr())
  AND s.state_change > clock_timestamp() - interval '1 minute'
  AND q.query ~ '\m((alter|create|drop)\s+(role|user|group)|grant|revoke|comment\s+on\s+role)\M'
  AND q.query ~ ('(^|[^a-z0-9_$\\])' || regexp_replace(a.spelt, '([^a-z0-9_])', '\\\1', 'g') || '($|[^a-z0-9_$\\])')
ORDER BY 1, 2, 3, 4
LIMIT 100
