-- Which server is this, what time is it there, and how is this connection encrypted? One row.
-- Names are sent as bytes: another database may have written them in its encoding.
SELECT
    current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS version_number,
    current_setting('server_encoding') AS encoding,
    clock_timestamp() AS now,
    textsend(pg_catalog.current_database()::text) AS database,
    textsend(session_user::text) AS login,
    current_setting('max_connections')::int AS max_connections,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved,
    d.datconnlimit AS database_limit,
    pg_catalog.inet_client_addr() IS NULL AS by_socket,
    coalesce(s.ssl, false) AS encrypted,
    coalesce(s.version, '') AS protocol
FROM pg_catalog.pg_database AS d
LEFT JOIN pg_catalog.pg_stat_ssl AS s ON s.pid = pg_catalog.pg_backend_pid()
WHERE d.datname = pg_catalog.current_database()
