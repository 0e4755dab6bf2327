-- Which DDL events with these tags came last? At most $2, among the newest $3; without those of the controller's own sessions.
-- Columns and texts as in events.sql.
-- $1 text[] tags   $2 integer   $3 integer
SELECT
    d.id, d.xid::text::bigint AS xid, false AS exact, 0 AS distance, getdatabaseencoding() AS encoding, d.at,
    decode(replace(coalesce(l.rolname, d.session)::text, '\', '\\'), 'escape') AS login,
    substring(decode(replace(CASE d.acting WHEN 'none' THEN d.session::text ELSE d.acting END, '\', '\\'), 'escape') FOR 63) AS role,
    decode(replace(left(d.app, 63), '\', '\\'), 'escape') AS app,
    coalesce(host(d.addr), '') AS address,
    left(d.tag, 63) AS tag,
    coalesce(d.object::text::bigint, 0) AS object,
    decode(replace(left(coalesce(d.said, ''), 1000), '\', '\\'), 'escape') AS said,
    false AS own
FROM (
    SELECT e.* FROM pgrole.ddl_event AS e ORDER BY e.id DESC LIMIT $3
) AS d
LEFT JOIN pg_catalog.pg_roles AS l ON l.oid = d.login
WHERE d.tag = ANY ($1::text[])
  AND NOT (coalesce(l.rolname, d.session) = session_user AND d.app LIKE 'pgrole-controller%')
ORDER BY d.id DESC
LIMIT $2
