-- Which prepared transactions are a role's? Names come as bytes, in whatever encoding.
-- $1 name role
SELECT textsend(x.database::text) AS database, textsend(x.gid) AS gid
FROM pg_catalog.pg_prepared_xacts AS x
WHERE x.owner = $1::name
ORDER BY x.prepared, x.gid
