-- Which DDL events with these tags came last? At most $2, among the newest $3; without those of the controller's own sessions.
-- Columns and texts as in events.sql. `outdated`: the controller has stored what it applied to a role since whose name is in the
-- statement.
-- $1 text[] tags   $2 integer   $3 integer
WITH stored AS MATERIALIZED (
    -- only the newest 100 are compared with each event; whatever is older than one more counts as outdated
    SELECT n.role_name, n.xid, row_number() OVER (ORDER BY n.xid DESC) AS place
    FROM (
        SELECT a.role_name, c.next - ((c.next - a.xmin::text::bigint) & 4294967295) AS xid
        FROM pgrole.applied AS a
        CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS c
    ) AS n
    ORDER BY n.xid DESC
    LIMIT 101
)
SELECT
    d.id, d.xid::text::bigint AS xid, false AS exact, 0 AS distance, getdatabaseencoding() AS encoding, d.at,
    decode(replace(coalesce(l.rolname, d.session)::text, '\', '\\'), 'escape') AS login,
    substring(decode(replace(CASE d.acting WHEN 'none' THEN d.session::text ELSE d.acting END, '\', '\\'), 'escape') FOR 63) AS role,
    decode(replace(left(d.app, 63), '\', '\\'), 'escape') AS app,
    coalesce(host(d.addr), '') AS address,
    left(d.tag, 63) AS tag,
    coalesce(d.object::text::bigint, 0) AS object,
    decode(replace(left(coalesce(d.said, ''), 1000), '\', '\\'), 'escape') AS said,
    (
        SELECT coalesce(bool_or(s.place > 100 OR strpos(lower(d.said), lower(s.role_name)) > 0), false)
        FROM stored AS s
        WHERE s.xid > d.xid::text::bigint
    ) AS outdated
FROM (
    SELECT e.* FROM pgrole.ddl_event AS e ORDER BY e.id DESC LIMIT $3
) AS d
LEFT JOIN pg_catalog.pg_roles AS l ON l.oid = d.login
WHERE d.tag = ANY ($1::text[])
  AND NOT (coalesce(l.rolname, d.session) = session_user AND d.app LIKE 'pgrole-controller%')
ORDER BY d.id DESC
LIMIT $2
