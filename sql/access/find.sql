-- Which relations, routines and schemas have this name? $1 text schema   $2 text name; NULL: the schema itself
SELECT 'pg_class'::regclass::oid AS catalog, c.oid, textsend('') AS arguments
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::name AND c.relname = $2::name AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
UNION ALL
SELECT 'pg_proc'::regclass, p.oid, textsend(coalesce(a.arguments, ''))
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
CROSS JOIN LATERAL (
    SELECT string_agg(pg_catalog.format_type(t.type, NULL), ', ' ORDER BY t.place) AS arguments
    FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t (type, place)
) AS a
WHERE n.nspname = $1::name AND p.proname = $2::name
UNION ALL
SELECT 'pg_namespace'::regclass, n.oid, textsend('')
FROM pg_catalog.pg_namespace AS n
WHERE $2::text IS NULL AND n.nspname = $1::name
LIMIT 1000
