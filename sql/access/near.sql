-- Which names could be meant? Those in the schema, and the same or a similar one in others; and schemas, if that is asked for.
-- $1 text schema   $2 text name; NULL: a schema is asked for
SELECT textsend(x.schema::text) AS schema, textsend(x.name::text) AS name
FROM (
    SELECT n.nspname AS schema, c.relname AS name, n.nspname = $1::name AS inside
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE $2::text IS NOT NULL AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND (n.nspname = $1::name OR (lower(c.relname::text) = lower($2) AND n.nspname !~ '^pg_(temp|toast)'))
    UNION ALL
    SELECT n.nspname, p.proname, n.nspname = $1::name
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE $2::text IS NOT NULL AND (n.nspname = $1::name OR lower(p.proname::text) = lower($2))
    UNION ALL
    SELECT n.nspname, '', false FROM pg_catalog.pg_namespace AS n WHERE n.nspname !~ '^pg_(temp|toast)'
) AS x
ORDER BY x.inside DESC, x.schema, x.name
LIMIT 5000
