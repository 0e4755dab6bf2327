-- How large are the catalogs of the objects that can have privileges? One row.
SELECT
    pg_catalog.pg_relation_size('pg_catalog.pg_class') + pg_catalog.pg_relation_size('pg_catalog.pg_proc') AS bytes
