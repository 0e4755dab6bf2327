-- Which DDL events may have written the rows with these transaction ids (xmin)? At most $2 events for each.
-- `exact`: the row has the id of the event's transaction, or that of the event's own row, so no other transaction can have
-- written it. Otherwise a subtransaction may have: its id is above its transaction's and not above that of the event's own row, which is inserted after
-- the command. Only the newest $3 events are searched for that, since no index can help.
-- `own`: of one of the controller's own sessions, in which event triggers fire unless it may turn them off.
-- Texts are sent as raw bytes in the encoding of the database, or of another one: names of roles, which are cut as bytes.
-- $1 bigint[] xmin (32 bits)   $2 integer   $3 integer
WITH clock AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next, getdatabaseencoding() AS encoding
),
wanted AS MATERIALIZED (
    -- ids below 3 are not those of transactions
    SELECT DISTINCT w.xmin, c.next - ((c.next - w.xmin) & 4294967295) AS xid
    FROM clock AS c CROSS JOIN unnest($1::bigint[]) AS w (xmin)
    WHERE w.xmin >= 3
),
recent AS MATERIALIZED (
    SELECT d.id, d.xid::text::bigint AS xid, c.next - ((c.next - d.xmin::text::bigint) & 4294967295) AS own
    FROM clock AS c CROSS JOIN (SELECT e.id, e.xid, e.xmin FROM pgrole.ddl_event AS e ORDER BY e.id DESC LIMIT $3) AS d
),
exact AS MATERIALIZED (
    SELECT w.xmin, w.xid, e.id
    FROM wanted AS w
    CROSS JOIN LATERAL (
        -- OFFSET 0: else many events of few transactions make PostgreSQL walk through all of them by id
        SELECT o.id
        FROM (SELECT d.id FROM pgrole.ddl_event AS d WHERE d.xid = w.xid::text::xid8 OFFSET 0) AS o
        ORDER BY o.id DESC
        LIMIT $2
    ) AS e
),
found AS (
    SELECT x.xmin, x.xid, x.id, true AS exact FROM exact AS x
    UNION ALL
    SELECT w.xmin, w.xid, r.id, r.own = w.xid
    FROM wanted AS w
    CROSS JOIN LATERAL (
        SELECT b.id, b.own FROM recent AS b WHERE b.xid < w.xid AND b.own >= w.xid ORDER BY b.own, b.id LIMIT $2
    ) AS r
    WHERE NOT EXISTS (SELECT FROM exact AS x WHERE x.xmin = w.xmin)
)
SELECT
    f.xmin, f.exact, d.id, d.xid::text::bigint AS xid,
    c.next - f.xid - ((c.next - d.xmin::text::bigint) & 4294967295) AS distance, c.encoding, d.at,
    decode(replace(coalesce(l.rolname, d.session)::text, '\', '\\'), 'escape') AS login,
    substring(decode(replace(CASE d.acting WHEN 'none' THEN d.session::text ELSE d.acting END, '\', '\\'), 'escape') FOR 63) AS role,
    decode(replace(left(d.app, 63), '\', '\\'), 'escape') AS app,
    coalesce(host(d.addr), '') AS address,
    left(d.tag, 63) AS tag,
    coalesce(d.object::text::bigint, 0) AS object,
    decode(replace(left(coalesce(d.said, ''), 1000), '\', '\\'), 'escape') AS said,
    coalesce(coalesce(l.rolname, d.session) = session_user AND d.app LIKE 'pgrole-controller%', false) AS own
FROM found AS f
JOIN pgrole.ddl_event AS d ON d.id = f.id
CROSS JOIN clock AS c
-- session_user is what SET SESSION AUTHORIZATION set
LEFT JOIN pg_catalog.pg_roles AS l ON l.oid = d.login
ORDER BY f.xmin, d.id
