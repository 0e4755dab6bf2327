-- May this session read a table of schema pgrole, and is it safe to do so? One row, also if the schema does not exist.
-- Safe: a plain table with PostgreSQL's own types and without row security, so that reading it runs no one's code, whoever
-- owns the schema. Lock the table before asking: then it stays what it is until the transaction ends.
-- $1 text the name of the table
SELECT
    n.oid IS NOT NULL AS present,
    c.oid IS NOT NULL AS has_table,
    coalesce(
        pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'), false
    ) AS readable,
    coalesce(
        c.relkind = 'r' AND NOT c.relrowsecurity AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND t.typnamespace <> 'pg_catalog'::regnamespace
        ),
        false
    ) AS safe,
    EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attname = 'privileges' AND NOT a.attisdropped
    ) AS keeps_privileges
FROM (SELECT 1) AS one
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'pgrole'
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = $1::text
