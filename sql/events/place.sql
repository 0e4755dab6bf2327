-- Which database and which session is this? One row.
SELECT
    d.oid, pg_catalog.pg_backend_pid() AS pid,
    current_setting('max_prepared_transactions')::int AS max_prepared_transactions, d.datallowconn AS accepting
FROM pg_catalog.pg_database AS d
WHERE d.datname = pg_catalog.current_database()
