-- Tables, views, sequences, routines, schemas and the database with these oids or names, found by index.
-- $4 as in objects.sql; their columns may have an ACL, even if it names only the owner.
-- OFFSET 0, and oids as bigint: a plan for any arguments looks up each object by index, instead of reading a whole catalog.
-- $5 oid[] oids in any of the catalogs. With $7 also what ALTER TABLE changes without an event of its own: owner and schema of a
-- table's sequences, columns of its partitions and of tables that inherit from it, signatures of routines with its row type
-- $6 name[] names in any schema
-- $7 text of the objects with these names, only those whose ACL this transaction (64 bits) or a later one may have written; NULL: all
-- $8 boolean or the ACL of one of its columns
SELECT
    'pg_class'::regclass::oid AS catalog, c.oid, c.relnamespace AS schema, c.relkind AS kind, c.relowner AS owner,
    c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END AS initial, false AS elevated,
    c.oid = ANY ($4::oid[]) AS apart, c.relname AS name, c.xmin AS version,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS m WHERE m.classid = 'pg_class'::regclass AND m.objid = c.oid AND m.deptype = 'e'
        OFFSET 0
    ) AS extension,
    c.oid = ANY ($4::oid[]) OR EXISTS (
        SELECT
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
          AND s.classid = 'pg_class'::regclass AND s.objid = c.oid AND s.objsubid <> 0
        OFFSET 0
    ) AS with_columns
FROM pg_catalog.pg_class AS c
WHERE (
    c.oid = ANY ($5::oid[]) OR c.oid = ANY (ARRAY(
        SELECT q.objid
        FROM pg_catalog.pg_depend AS q
        WHERE $7::text IS NOT NULL AND q.refclassid = 'pg_class'::regclass AND q.refobjid = ANY ($5::oid[]) AND q.refobjsubid > 0
          AND q.classid = 'pg_class'::regclass AND q.deptype IN ('a', 'i')
        UNION ALL
        SELECT i.oid
        FROM (
            WITH RECURSIVE below AS (
                SELECT h.inhrelid AS oid
                FROM pg_catalog.pg_inherits AS h
                WHERE $7::text IS NOT NULL AND h.inhparent = ANY ($5::oid[])
                UNION
                SELECT h.inhrelid FROM below AS b JOIN pg_catalog.pg_inherits AS h ON h.inhparent = b.oid
            )
            SELECT b.oid FROM below AS b
        ) AS i
        WHERE EXISTS (
            SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = i.oid AND age(a.xmin) <= age($7::text::xid8::xid)
            OFFSET 0
        )
    )) OR (
        c.relname = ANY ($6::name[]) AND (
            $7::text IS NULL OR age(c.xmin) <= age($7::text::xid8::xid) OR ($8::boolean AND EXISTS (
                SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND age(a.xmin) <= age($7::text::xid8::xid)
                OFFSET 0
            ))
        )
    )
)
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid::bigint >= 16384 AND c.relpersistence <> 't'
UNION ALL
SELECT
    'pg_proc'::regclass, p.oid, p.pronamespace, p.prokind, p.proowner, p.proacl, 'f',
    p.prosecdef OR p.prolang = ANY (ARRAY(
        SELECT l.oid FROM pg_catalog.pg_language AS l WHERE NOT l.lanpltrusted AND l.lanname <> 'internal'
    )), false, p.proname, p.xmin,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS m WHERE m.classid = 'pg_proc'::regclass AND m.objid = p.oid AND m.deptype = 'e'
        OFFSET 0
    ),
    false
FROM pg_catalog.pg_proc AS p
WHERE (
    p.oid = ANY ($5::oid[]) OR p.oid = ANY (ARRAY(
        SELECT q.objid
        FROM pg_catalog.pg_class AS r
        JOIN pg_catalog.pg_type AS y ON y.oid = r.reltype
        CROSS JOIN LATERAL (VALUES (y.oid), (y.typarray)) AS u (type)
        JOIN pg_catalog.pg_depend AS q ON q.refclassid = 'pg_type'::regclass AND q.refobjid = u.type
        WHERE $7::text IS NOT NULL AND r.oid = ANY ($5::oid[]) AND q.classid = 'pg_proc'::regclass
    ))
    OR (p.proname = ANY ($6::name[]) AND ($7::text IS NULL OR age(p.xmin) <= age($7::text::xid8::xid)))
) AND p.oid::bigint >= 16384
UNION ALL
SELECT 'pg_namespace'::regclass, n.oid, n.oid, 'n', n.nspowner, n.nspacl, 'n', false, true, n.nspname, n.xmin,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS m WHERE m.classid = 'pg_namespace'::regclass AND m.objid = n.oid AND m.deptype = 'e'
        OFFSET 0
    ),
    false
FROM pg_catalog.pg_namespace AS n
WHERE (
    n.oid = ANY ($5::oid[])
    OR (n.nspname = ANY ($6::name[]) AND ($7::text IS NULL OR age(n.xmin) <= age($7::text::xid8::xid)))
)
  AND (n.oid::bigint >= 16384 OR n.oid::bigint = 2200) AND n.nspname !~ '^pg_(temp|toast)'
UNION ALL
SELECT 'pg_database'::regclass, d.oid, 0, 'd', d.datdba, d.datacl, 'd', false, true, d.datname, d.xmin, false, false
FROM pg_catalog.pg_database AS d
WHERE d.oid = ANY ($5::oid[]) AND d.datname = current_database()
