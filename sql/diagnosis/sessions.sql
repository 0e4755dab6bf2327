-- How many sessions has the server, this database, and the controller's role? One row.
-- $1 bytea the name of the controller's role
SELECT
    count(*) AS server,
    count(*) FILTER (WHERE a.datname = pg_catalog.current_database()) AS database,
    count(*) FILTER (WHERE textsend(a.usename::text) = $1::bytea) AS role
FROM pg_catalog.pg_stat_activity AS a
WHERE a.usesysid IS NOT NULL AND a.backend_type IS DISTINCT FROM 'walsender'
