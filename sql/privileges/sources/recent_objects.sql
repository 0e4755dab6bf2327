-- Tables, views, sequences, routines, schemas and the database, if recent transactions wrote their rows; and relations that get
-- rows of their own: those with a column whose row a recent transaction wrote, and $4 as in objects.sql.
-- OFFSET 0: PostgreSQL looks up each of the few objects by index, instead of reading a whole catalog.
-- $5 text the oldest of these transactions, 64 bits   $6 boolean the database in any case
WITH oldest AS (SELECT age($5::text::xid8::xid) AS age)
SELECT
    'pg_class'::regclass::oid AS catalog, c.oid, c.relnamespace AS schema, c.relkind AS kind, c.relowner AS owner,
    c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END AS initial, false AS elevated,
    k.apart, c.relname AS name, c.xmin AS version,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS m WHERE m.classid = 'pg_class'::regclass AND m.objid = c.oid AND m.deptype = 'e'
        OFFSET 0
    ) AS extension,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
          AND s.classid = 'pg_class'::regclass AND s.objid = c.oid AND s.objsubid <> 0
        OFFSET 0
    ) AS with_columns
FROM (
    SELECT f.oid, bool_or(f.apart) AS apart
    FROM (
        SELECT r.oid, false AS apart FROM pg_catalog.pg_class AS r WHERE age(r.xmin) <= (SELECT o.age FROM oldest AS o)
        UNION ALL
        SELECT s.objid, true
        FROM (
            -- two ranges, since <> cannot use the index
            SELECT p.objid, p.objsubid
            FROM pg_catalog.pg_shdepend AS p
            WHERE p.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
              AND p.classid = 'pg_class'::regclass AND p.objsubid > 0
            UNION ALL
            SELECT p.objid, p.objsubid
            FROM pg_catalog.pg_shdepend AS p
            WHERE p.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
              AND p.classid = 'pg_class'::regclass AND p.objsubid < 0
        ) AS s
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = s.objid AND a.attnum = s.objsubid AND NOT a.attisdropped
        WHERE age(a.xmin) <= (SELECT o.age FROM oldest AS o)
        UNION ALL
        SELECT t.oid, true
        FROM unnest($4::oid[]) AS t (oid)
        WHERE EXISTS (
            SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = t.oid AND age(a.xmin) <= (SELECT o.age FROM oldest AS o)
            OFFSET 0
        )
    ) AS f
    GROUP BY f.oid
) AS k
JOIN pg_catalog.pg_class AS c ON c.oid = k.oid
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid >= 16384 AND c.relpersistence <> 't'
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
WHERE age(p.xmin) <= (SELECT o.age FROM oldest AS o) AND p.oid >= 16384
UNION ALL
SELECT 'pg_namespace'::regclass, n.oid, n.oid, 'n', n.nspowner, n.nspacl, 'n', false, true, n.nspname, n.xmin,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS m WHERE m.classid = 'pg_namespace'::regclass AND m.objid = n.oid AND m.deptype = 'e'
        OFFSET 0
    ),
    false
FROM pg_catalog.pg_namespace AS n
WHERE age(n.xmin) <= (SELECT o.age FROM oldest AS o)
  AND (n.oid >= 16384 OR n.oid = 2200) AND n.nspname !~ '^pg_(temp|toast)'
UNION ALL
SELECT 'pg_database'::regclass, d.oid, 0, 'd', d.datdba, d.datacl, 'd', false, true, d.datname, d.xmin, false, false
FROM pg_catalog.pg_database AS d
WHERE ($6::boolean OR age(d.xmin) <= (SELECT o.age FROM oldest AS o)) AND d.datname = current_database()
