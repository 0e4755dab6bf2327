-- Which schemas exist? One row for each, without those of temporary tables.
SELECT n.oid, textsend(n.nspname::text) AS name
FROM pg_catalog.pg_namespace AS n
WHERE n.nspname !~ '^pg_(temp|toast)'
