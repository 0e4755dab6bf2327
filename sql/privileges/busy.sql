-- What of this does another transaction keep from being changed? It holds, or waits for, a lock that conflicts with ours, or it
-- wrote the row that has the ACL, or that of a column, and has not ended. Rows may repeat.
-- The catalog pg_default_acl stands for default privileges, by creator, schema and type of object.
-- $1 oid[] objects. $2 oid[] creators
WITH written AS (
    SELECT 'pg_class' AS catalog, c.oid, NULL::bytea AS schema, NULL AS object_type, c.xmax AS writer
    FROM pg_catalog.pg_class AS c WHERE c.oid = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_class', a.attrelid, NULL, NULL, a.xmax
    FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_namespace', n.oid, NULL, NULL, n.xmax
    FROM pg_catalog.pg_namespace AS n WHERE n.oid = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_proc', p.oid, NULL, NULL, p.xmax
    FROM pg_catalog.pg_proc AS p WHERE p.oid = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_database', d.oid, NULL, NULL, d.xmax
    FROM pg_catalog.pg_database AS d WHERE d.oid = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_default_acl', d.defaclrole, textsend(coalesce(n.nspname::text, '')), d.defaclobjtype::text, d.xmax
    FROM pg_catalog.pg_default_acl AS d LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = d.defaclnamespace
    WHERE d.defaclrole = ANY ($2::oid[]) AND (d.defaclnamespace = 0 OR n.oid IS NOT NULL)
)
SELECT 'pg_class' AS catalog, l.relation AS oid, NULL::bytea AS schema, NULL AS object_type
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'relation'
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
  AND l.relation = ANY ($1::oid[])
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
UNION ALL
SELECT w.catalog, w.oid, w.schema, w.object_type
FROM written AS w
CROSS JOIN (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next) AS s
-- xmax has the lower half of the transaction's id, which is at most 2^31 away from the next one.
CROSS JOIN LATERAL (
    SELECT (w.writer::text::bigint - s.next % 4294967296 + 6442450944) % 4294967296 - 2147483648 AS ahead
) AS a
WHERE w.writer <> '0'
  AND CASE
      WHEN a.ahead >= 0 THEN true
      WHEN s.next + a.ahead < 3 THEN false
      ELSE pg_catalog.pg_xact_status((s.next + a.ahead)::text::xid8) = 'in progress'
  END
