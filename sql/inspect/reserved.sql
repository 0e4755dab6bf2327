-- Are all connections that are left reserved, by superuser_reserved_connections or reserved_connections? One row.
SELECT
    current_setting('max_connections')::int - count(*) < current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved
FROM pg_catalog.pg_stat_get_activity(NULL) AS a
WHERE a.backend_type = 'client backend'
