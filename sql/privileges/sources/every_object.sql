-- Every table, view, sequence, routine and schema that is not PostgreSQL's own, and the database; and at most 1,000 objects of
-- the kinds that no declaration can name, in whose ACLs the grantees are, except types of PostgreSQL. $1, $4 as in objects.sql.
-- 2200: the schema that was created as public, whatever its name is now
-- $5 oid, $6 oid: only those with an oid above the first, up to the second
SELECT e.*
FROM (
    SELECT
        'pg_class'::regclass::oid AS catalog, c.oid, c.relnamespace AS schema, c.relkind AS kind, c.relowner AS owner,
        c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END AS initial, false AS elevated,
        c.oid = ANY ($4::oid[]) AS apart, c.relname AS name, c.xmin AS version,
        NULL::boolean AS extension, NULL::boolean AS with_columns
    FROM pg_catalog.pg_class AS c
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid >= 16384 AND c.relpersistence <> 't'
    UNION ALL
    SELECT
        'pg_proc'::regclass, p.oid, p.pronamespace, p.prokind, p.proowner, p.proacl, 'f',
        p.prosecdef OR p.prolang = ANY (ARRAY(
            SELECT l.oid FROM pg_catalog.pg_language AS l WHERE NOT l.lanpltrusted AND l.lanname <> 'internal'
        )), false, p.proname, p.xmin, NULL, NULL
    FROM pg_catalog.pg_proc AS p
    WHERE p.oid >= 16384
    UNION ALL
    SELECT 'pg_namespace'::regclass, n.oid, n.oid, 'n', n.nspowner, n.nspacl, 'n', false, true, n.nspname, n.xmin, NULL, NULL
    FROM pg_catalog.pg_namespace AS n
    WHERE (n.oid >= 16384 OR n.oid = 2200) AND n.nspname !~ '^pg_(temp|toast)'
    UNION ALL
    SELECT 'pg_database'::regclass, d.oid, 0, 'd', d.datdba, d.datacl, 'd', false, true, d.datname, d.xmin, NULL, NULL
    FROM pg_catalog.pg_database AS d
    WHERE d.datname = current_database()
    UNION ALL
    SELECT d.classid, d.objid, x.schema, x.kind, x.owner, x.acl, x.initial, false, true, x.name, x.version, NULL, NULL
    FROM (
        SELECT DISTINCT s.classid, s.objid
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.dbid = (SELECT c.oid FROM pg_catalog.pg_database AS c WHERE c.datname = current_database())
          AND s.classid IN (
              'pg_type'::regclass, 'pg_language'::regclass, 'pg_foreign_data_wrapper'::regclass, 'pg_foreign_server'::regclass,
              'pg_largeobject'::regclass
          )
          AND (s.classid <> 'pg_type'::regclass OR s.objid >= 16384)
          AND s.refclassid = 'pg_authid'::regclass AND s.refobjid = ANY ($1::oid[]) AND s.deptype = 'a'
        ORDER BY s.classid, s.objid
        LIMIT 1000
    ) AS d
    CROSS JOIN LATERAL (
        SELECT
            t.typnamespace AS schema, t.typtype AS kind, t.typowner AS owner, t.typacl AS acl, 'T'::"char" AS initial,
            t.typname AS name, t.xmin AS version
        FROM pg_catalog.pg_type AS t
        WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid
        UNION ALL
        SELECT 0, 'l', l.lanowner, l.lanacl, 'l', l.lanname, l.xmin
        FROM pg_catalog.pg_language AS l
        WHERE d.classid = 'pg_language'::regclass AND l.oid = d.objid
        UNION ALL
        SELECT 0, 'F', f.fdwowner, f.fdwacl, 'F', f.fdwname, f.xmin
        FROM pg_catalog.pg_foreign_data_wrapper AS f
        WHERE d.classid = 'pg_foreign_data_wrapper'::regclass AND f.oid = d.objid
        UNION ALL
        SELECT 0, 'S', f.srvowner, f.srvacl, 'S', f.srvname, f.xmin
        FROM pg_catalog.pg_foreign_server AS f
        WHERE d.classid = 'pg_foreign_server'::regclass AND f.oid = d.objid
        UNION ALL
        SELECT 0, 'L', m.lomowner, m.lomacl, 'L', m.oid::text::name, m.xmin
        FROM pg_catalog.pg_largeobject_metadata AS m
        WHERE d.classid = 'pg_largeobject'::regclass AND m.oid = d.objid
    ) AS x
) AS e
WHERE e.oid > $5::oid AND e.oid <= $6::oid
