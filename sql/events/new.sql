-- Which DDL of other sessions was committed since the last read? One row for each event, 1,000 at most, in the order of their
-- ids; one row without an event if there is none. $2 true: if no transaction with an id has ended since, nothing is read.
-- `database`: the transaction that wrote the row of the database, about which there is never an event.
-- Not `id > last`: a transaction with a lower id may commit later.
-- Who caused each: columns and texts as in sql/attribution/events.sql, of an event whose transaction wrote the changed row.
-- $1 text the snapshot of the last read   $2 boolean whether the snapshot decides
SELECT
    now.snapshot, e.id, e.xid, e.command, e.kind, e.class, e.object, e.said, e.at, e.count,
    true AS exact, 0::bigint AS distance, getdatabaseencoding() AS encoding, e.tag, e.login, e.role, e.app, e.address,
    false AS own,
    (
        SELECT b.xmin::text::bigint FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database()
    ) AS database
-- OFFSET 0: taken once
FROM (SELECT pg_catalog.pg_current_snapshot()::text AS snapshot OFFSET 0) AS now
LEFT JOIN LATERAL (
    SELECT
        d.id, d.xid::text::bigint AS xid, d.command, coalesce(left(d.kind, 63), '') AS kind, d.class,
        coalesce(d.object::text::bigint, 0) AS object, d.at,
        decode(replace(left(coalesce(d.said, ''), 1000), '\', '\\'), 'escape') AS said,
        left(d.tag, 63) AS tag,
        decode(replace(coalesce(l.rolname, d.session)::text, '\', '\\'), 'escape') AS login,
        substring(
            decode(replace(CASE d.acting WHEN 'none' THEN d.session::text ELSE d.acting END, '\', '\\'), 'escape') FOR 63
        ) AS role,
        decode(replace(left(d.app, 63), '\', '\\'), 'escape') AS app,
        coalesce(host(d.addr), '') AS address,
        -- as many as a transaction can have: its list was cut
        count(*) OVER (PARTITION BY d.xid) AS count
    FROM pgrole.ddl_event AS d
    -- session_user is what SET SESSION AUTHORIZATION set
    LEFT JOIN pg_catalog.pg_roles AS l ON l.oid = d.login
    WHERE (NOT $2::boolean OR now.snapshot IS DISTINCT FROM $1::text)
      AND d.xid >= pg_catalog.pg_snapshot_xmin($1::text::pg_snapshot)
      AND NOT pg_catalog.pg_visible_in_snapshot(d.xid, $1::text::pg_snapshot)
      -- with a dump of another server come events of transactions that have not begun here
      AND d.xid < pg_catalog.pg_snapshot_xmax(now.snapshot::pg_snapshot)
      AND d.pid <> pg_catalog.pg_backend_pid()
    ORDER BY d.id
    LIMIT 1000
) AS e ON true
