-- Tables, views, sequences, routines, schemas and the database, if recent transactions wrote their rows; and relations that get
-- rows of their own. $4 as in objects.sql.
-- $5 int age of the oldest of these transactions
SELECT
    'pg_class'::regclass::oid AS catalog, c.oid, c.relnamespace AS schema, c.relkind AS kind, c.relowner AS owner,
    c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END AS initial, false AS security_definer,
    c.oid = ANY ($4::oid[]) AS apart, c.relname AS name, c.xmin AS version
FROM pg_catalog.pg_class AS c
WHERE (age(c.xmin) <= $5 OR c.oid = ANY ($4::oid[]))
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid >= 16384 AND c.relpersistence <> 't'
UNION ALL
SELECT
    'pg_proc'::regclass, p.oid, p.pronamespace, p.prokind, p.proowner, p.proacl, 'f', p.prosecdef, false, p.proname, p.xmin
FROM pg_catalog.pg_proc AS p
WHERE age(p.xmin) <= $5 AND p.oid >= 16384
UNION ALL
SELECT 'pg_namespace'::regclass, n.oid, n.oid, 'n', n.nspowner, n.nspacl, 'n', false, true, n.nspname, n.xmin
FROM pg_catalog.pg_namespace AS n
WHERE age(n.xmin) <= $5
  AND (n.oid >= 16384 OR n.nspname = 'public') AND n.nspname !~ '^pg_(temp|toast)'
UNION ALL
SELECT 'pg_database'::regclass, d.oid, 0, 'd', d.datdba, d.datacl, 'd', false, true, d.datname, d.xmin
FROM pg_catalog.pg_database AS d
WHERE age(d.xmin) <= $5 AND d.datname = current_database()
