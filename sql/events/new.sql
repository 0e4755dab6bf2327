-- Which DDL of other sessions was committed since the last read? One row for each event, 1,000 at most, in the order of their
-- ids; one row without an event if there is none. $2 true: if no transaction with an id has ended since, nothing is read.
-- Not `id > last`: a transaction with a lower id may commit later.
-- $1 text the snapshot of the last read   $2 boolean whether the snapshot decides
SELECT
    now.snapshot, e.id, e.xid, e.command, e.kind, e.class, e.object, e.identity, e.said, e.at, e.count
-- OFFSET 0: taken once
FROM (SELECT pg_catalog.pg_current_snapshot()::text AS snapshot OFFSET 0) AS now
LEFT JOIN LATERAL (
    SELECT
        d.id, d.xid::text::bigint AS xid, d.command, d.kind, d.class, d.object, d.at,
        textsend(substr(d.identity, 1, 300)) AS identity, textsend(d.said) AS said,
        -- as many as a transaction can have: its list was cut
        count(*) OVER (PARTITION BY d.xid) AS count
    FROM pgrole.ddl_event AS d
    WHERE (NOT $2::boolean OR now.snapshot IS DISTINCT FROM $1::text)
      AND d.xid >= pg_catalog.pg_snapshot_xmin($1::text::pg_snapshot)
      AND NOT pg_catalog.pg_visible_in_snapshot(d.xid, $1::text::pg_snapshot)
      -- with a dump of another server come events of transactions that have not begun here
      AND d.xid < pg_catalog.pg_snapshot_xmax(now.snapshot::pg_snapshot)
      AND d.pid <> pg_catalog.pg_backend_pid()
    ORDER BY d.id
    LIMIT 1000
) AS e ON true
