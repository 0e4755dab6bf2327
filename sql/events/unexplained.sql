-- Which transactions without an event wrote the row of a relation, a routine, a schema or default privileges since the oldest one
-- that ran at the last question? REASSIGN OWNED does, which fires no event trigger, and so does a GRANT while event triggers are
-- off. One row: at most 100 ids (xmin, 32 bits), the last ones; none if no transaction with an id has ended. Commands that change
-- no privilege, e.g. TRUNCATE, count as well, and so do subtransactions, whose events have another id. Not those of this session
-- that verified what they wrote (acl_transaction.py), whether their events were recorded or not.
-- The age of a row that was frozen long ago can be negative. Relation oldest is computed once, not for each row.
-- $1 text the snapshot of the last question   $2 text, $3 integer, $4 text transactions, process and snapshot of the session, if
-- another one asks: what has ended since that snapshot is left for the next question, since the session may have noted it
WITH oldest AS (SELECT age(pg_catalog.pg_snapshot_xmin($1::text::pg_snapshot)::xid) AS age)
SELECT now.snapshot, ARRAY(
    SELECT t.id
    -- a transaction may have written very many rows
    FROM (
        SELECT DISTINCT w.xmin::text::bigint AS id
        FROM (
            SELECT c.xmin FROM pg_catalog.pg_class AS c
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
              AND age(c.xmin) <= (SELECT o.age FROM oldest AS o)
            UNION ALL
            SELECT p.xmin FROM pg_catalog.pg_proc AS p
            WHERE age(p.xmin) <= (SELECT o.age FROM oldest AS o)
            UNION ALL
            SELECT n.xmin FROM pg_catalog.pg_namespace AS n
            WHERE n.nspname NOT LIKE 'pg\_t%' AND age(n.xmin) <= (SELECT o.age FROM oldest AS o)
            UNION ALL
            SELECT d.xmin FROM pg_catalog.pg_default_acl AS d
            WHERE age(d.xmin) <= (SELECT o.age FROM oldest AS o)
        ) AS w
        -- ids below 3 are not those of transactions
        WHERE now.snapshot IS DISTINCT FROM $1::text AND w.xmin::text::bigint >= 3 AND age(w.xmin) >= 0
        OFFSET 0
    ) AS t
    WHERE NOT EXISTS (
          SELECT
          FROM pgrole.ddl_event AS e
          WHERE e.xid = (now.next - ((now.next - t.id) & 4294967295))::text::xid8
            AND e.pid <> coalesce($3::integer, pg_catalog.pg_backend_pid())
          OFFSET 0
      )
      AND ($4::text IS NULL OR pg_catalog.pg_visible_in_snapshot(
          (now.next - ((now.next - t.id) & 4294967295))::text::xid8, $4::text::pg_snapshot
      ))
      AND t.id::text <> ALL (
          pg_catalog.string_to_array(
              coalesce($2::text, pg_catalog.current_setting('pgrole.own_transactions', true), ''), ','
          )
      )
    ORDER BY t.id DESC
    LIMIT 100
) AS found
-- OFFSET 0: taken once
FROM (
    SELECT coalesce($4::text, s.snapshot::text) AS snapshot, pg_catalog.pg_snapshot_xmax(s.snapshot)::text::bigint AS next
    FROM (SELECT pg_catalog.pg_current_snapshot() AS snapshot OFFSET 0) AS s
    OFFSET 0
) AS now
