-- Which databases exist? One row for each, at most 10,000. `connectable`: sessions may connect to it, and this role may.
SELECT
    textsend(d.datname::text) AS name,
    d.datallowconn AND d.datconnlimit <> -2 AND has_database_privilege(current_user, d.oid, 'CONNECT') AS connectable,
    d.datallowconn AND d.datconnlimit <> -2 AS allows_connections,
    d.datistemplate AS template
FROM pg_catalog.pg_database AS d
ORDER BY d.datname
LIMIT 10000
