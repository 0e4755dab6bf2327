-- How many relations and routines are in each schema? `page_key`, `page_size`: postgres/answer_pages.py.
SELECT textsend(n.nspname::text) AS schema, x.catalog, x.kind::text AS kind, x.count,
    row_number() OVER (ORDER BY n.oid, x.catalog, x.kind) AS page_key, 350 AS page_size
FROM (
    SELECT 'pg_class'::regclass::oid AS catalog, c.relnamespace AS schema, c.relkind AS kind, count(*) AS count
    FROM pg_catalog.pg_class AS c
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
    GROUP BY c.relnamespace, c.relkind
    UNION ALL
    SELECT 'pg_proc'::regclass, p.pronamespace, 'f', count(*) FROM pg_catalog.pg_proc AS p GROUP BY p.pronamespace
) AS x
JOIN pg_catalog.pg_namespace AS n ON n.oid = x.schema
