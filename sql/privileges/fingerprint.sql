-- Has any ACL in this database changed? One number over identity and version of every row that has one. NULL: nothing can have
-- changed, since no transaction with an id has ended since the last look. $1 text the snapshot of the last look; NULL: none
SELECT now.snapshot, f.fingerprint
FROM (SELECT pg_catalog.pg_current_snapshot()::text AS snapshot OFFSET 0) AS now
LEFT JOIN LATERAL (
    SELECT bit_xor(hashint8extended((r.oid::bigint << 32) | r.version::text::bigint, r.place)) # count(*) AS fingerprint
    FROM (
        SELECT c.oid, c.xmin AS version, 1::bigint AS place
        FROM pg_catalog.pg_class AS c
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid >= 16384 AND c.relpersistence <> 't'
        UNION ALL
        SELECT p.oid, p.xmin, 2 FROM pg_catalog.pg_proc AS p WHERE p.oid >= 16384
        UNION ALL
        SELECT n.oid, n.xmin, 3 FROM pg_catalog.pg_namespace AS n WHERE n.nspname !~ '^pg_(temp|toast)'
        UNION ALL
        SELECT s.objid, a.xmin, (s.objsubid::bigint << 32) | s.refobjid::bigint
        FROM pg_catalog.pg_shdepend AS s
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = s.objid AND a.attnum = s.objsubid
        WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
          AND s.classid = 'pg_class'::regclass AND s.objsubid > 0
        UNION ALL
        SELECT d.oid, d.xmin, 4 FROM pg_catalog.pg_default_acl AS d
        UNION ALL
        SELECT d.oid, d.xmin, 5 FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()
    ) AS r
    WHERE now.snapshot IS DISTINCT FROM $1::text
) AS f ON true
