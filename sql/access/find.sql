-- Which relations, routines and schemas have this name? $1 text schema   $2 text name; NULL: the schema itself
-- $3 oid of a routine, instead of a name; 0: none
SELECT 'pg_class'::regclass::oid AS catalog, c.oid, c.relkind::text AS kind, '' AS arguments
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE $3::oid = 0 AND n.nspname = $1::name AND c.relname = $2::name AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
UNION ALL
SELECT 'pg_proc'::regclass, p.oid, 'f', pg_catalog.oidvectortypes(p.proargtypes)
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE CASE WHEN $3::oid = 0 THEN n.nspname = $1::name AND p.proname = $2::name ELSE p.oid = $3::oid END
UNION ALL
SELECT 'pg_namespace'::regclass, n.oid, 'n', ''
FROM pg_catalog.pg_namespace AS n
WHERE $3::oid = 0 AND $2::text IS NULL AND n.nspname = $1::name
LIMIT 101
