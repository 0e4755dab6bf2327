-- Has anything changed that decides who may do what in this database? One row: numbers that differ whenever a row with an ACL, an
-- owner or a name was written. `objects`: of rows that decide about their own object alone; `others`: of the rest. Both are NULL if
-- no transaction with an id has ended since the last round: then nothing has changed.
-- It hashes the versions of the rows and no values, since any role can store values of any length.
-- $1 text the snapshot of the last round   $2 bigint the key of the hash   $3 oid[] tables with declared columns
SELECT
    now.snapshot, pg_catalog.pg_postmaster_start_time() AS started_at, pg_catalog.pg_is_in_recovery() AS in_recovery,
    every.computed, every.objects, every.others
-- OFFSET 0: taken once
FROM (SELECT pg_catalog.pg_current_snapshot()::text AS snapshot OFFSET 0) AS now
LEFT JOIN LATERAL (
    SELECT
        count(*) > 0 AS computed,
        bit_xor(hash_record_extended(ROW(p.class, p.object, p.version, p.entry), $2::bigint)) FILTER (WHERE p.own) AS objects,
        bit_xor(hash_record_extended(ROW(p.class, p.object, p.version, p.entry), $2::bigint)) FILTER (WHERE NOT p.own) AS others
    FROM (
        SELECT c.relkind <> 'c', c.tableoid, c.oid, c.xmin, 0::bigint FROM pg_catalog.pg_class AS c
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND c.relpersistence <> 't'
        UNION ALL
        SELECT true, f.tableoid, f.oid, f.xmin, 0 FROM pg_catalog.pg_proc AS f
        UNION ALL
        -- names of schemas are in those of all their objects
        SELECT false, n.tableoid, n.oid, n.xmin, 0 FROM pg_catalog.pg_namespace AS n WHERE n.nspname NOT LIKE 'pg\_t%'
        UNION ALL
        SELECT true, d.tableoid, d.oid, d.xmin, 0 FROM pg_catalog.pg_default_acl AS d
        UNION ALL
        SELECT true, d.tableoid, d.oid, d.xmin, 0 FROM pg_catalog.pg_database AS d
        WHERE d.datname = pg_catalog.current_database()
        UNION ALL
        -- columns with an ACL; by column and role, since equal rows would cancel each other out
        SELECT true, s.tableoid, s.objid, a.xmin, (s.objsubid::bigint << 32) | s.refobjid::bigint
        FROM pg_catalog.pg_shdepend AS s
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = s.objid AND a.attnum = s.objsubid
        WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
          AND s.classid = 'pg_catalog.pg_class'::regclass AND s.objsubid <> 0 AND s.deptype = 'a'
        UNION ALL
        -- a renamed column may be, or have been, a declared one
        SELECT true, a.tableoid, a.attrelid, a.xmin, a.attnum::bigint
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = ANY ($3::oid[]) AND a.attnum > 0
        UNION ALL
        -- names of types are in signatures of routines; of row types and arrays, those of the rows above tell. A domain has the
        -- category of its base type
        SELECT false, t.tableoid, t.oid, t.xmin, 0
        FROM pg_catalog.pg_type AS t
        WHERE t.typacl IS NOT NULL OR (t.oid >= 16384 AND t.typrelid = 0 AND (t.typcategory <> 'A' OR t.typtype = 'd'))
        UNION ALL
        -- objects of extensions
        SELECT false, m.classid, m.objid, m.xmin, m.refobjid::bigint
        FROM pg_catalog.pg_extension AS x
        JOIN pg_catalog.pg_depend AS m
            ON m.refclassid = 'pg_catalog.pg_extension'::regclass AND m.refobjid = x.oid AND m.deptype = 'e'
        UNION ALL
        SELECT false, m.tableoid, m.oid, m.xmin, 0 FROM pg_catalog.pg_largeobject_metadata AS m WHERE m.lomacl IS NOT NULL
        UNION ALL
        SELECT false, l.tableoid, l.oid, l.xmin, 0 FROM pg_catalog.pg_language AS l
        UNION ALL
        SELECT false, w.tableoid, w.oid, w.xmin, 0 FROM pg_catalog.pg_foreign_data_wrapper AS w
        UNION ALL
        SELECT false, w.tableoid, w.oid, w.xmin, 0 FROM pg_catalog.pg_foreign_server AS w
    ) AS p (own, class, object, version, entry)
    WHERE now.snapshot IS DISTINCT FROM $1::text
) AS every ON true
