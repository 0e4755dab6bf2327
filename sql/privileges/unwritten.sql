-- Has this transaction left one of these rows as it was? One row. GRANT and REVOKE write the row of whatever has the name at that
-- moment: another object may have had it, and have lost it again, while someone else changed the privileges of this one.
-- A row that is visible was written by this transaction or a subtransaction of it if that has not ended.
-- The setting pgrole.changed: jsonb array of objects with catalog, oid and, for a column of a table, column, or bytes: its
-- name in hexadecimal if that is not UTF-8, as only a database of encoding SQL_ASCII has it.
SELECT EXISTS (
    SELECT
    FROM jsonb_to_recordset(current_setting('pgrole.changed')::jsonb) AS e (catalog text, oid oid, "column" text, bytes text)
    LEFT JOIN LATERAL (
        SELECT c.xmin AS version FROM pg_catalog.pg_class AS c
        WHERE e.catalog = 'pg_class' AND c.oid = e.oid AND e."column" IS NULL AND e.bytes IS NULL
        UNION ALL
        SELECT t.xmin FROM pg_catalog.pg_attribute AS t
        WHERE e.catalog = 'pg_class' AND t.attrelid = e.oid AND NOT t.attisdropped
          AND t.attname = coalesce(e."column", convert_from(decode(e.bytes, 'hex'), 'SQL_ASCII'))::name
        UNION ALL
        SELECT p.xmin FROM pg_catalog.pg_proc AS p WHERE e.catalog = 'pg_proc' AND p.oid = e.oid
        UNION ALL
        SELECT n.xmin FROM pg_catalog.pg_namespace AS n WHERE e.catalog = 'pg_namespace' AND n.oid = e.oid
        UNION ALL
        SELECT d.xmin FROM pg_catalog.pg_database AS d WHERE e.catalog = 'pg_database' AND d.oid = e.oid
    ) AS f ON true
    CROSS JOIN (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next) AS s
    -- as in sql/privileges/busy.sql; a row that was frozen long ago may have any number
    CROSS JOIN LATERAL (
        SELECT (f.version::text::bigint - s.next % 4294967296 + 6442450944) % 4294967296 - 2147483648 AS ahead
    ) AS a
    WHERE CASE
        WHEN a.ahead BETWEEN 0 AND 1000000 THEN false
        WHEN a.ahead BETWEEN -1000000 AND -1 AND s.next + a.ahead >= 3
        THEN pg_catalog.pg_xact_status((s.next + a.ahead)::text::xid8) IS DISTINCT FROM 'in progress'
        ELSE true
    END
) AS unwritten
