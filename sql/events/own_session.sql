-- What has a search on another connection to know of this session? One row: its snapshot, its process, the transactions that it
-- noted (searches.py), and the bytes of the catalogs that would be searched.
SELECT
    pg_catalog.pg_current_snapshot()::text AS snapshot, pg_catalog.pg_backend_pid() AS pid,
    coalesce(pg_catalog.current_setting('pgrole.own_transactions', true), '') AS transactions,
    pg_catalog.pg_relation_size('pg_catalog.pg_class') + pg_catalog.pg_relation_size('pg_catalog.pg_proc') AS bytes
