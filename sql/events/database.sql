-- Which database and which session is this? One row.
SELECT
    d.oid, pg_catalog.pg_backend_pid() AS pid, d.datallowconn AS accepting, d.datistemplate AS template
FROM pg_catalog.pg_database AS d
WHERE d.datname = pg_catalog.current_database()
