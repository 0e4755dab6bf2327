-- Which prepared transactions does a role own? Names are sent as bytes, in any encoding.
-- $1 oid role
SELECT textsend(x.database::text) AS database, textsend(x.gid) AS gid
FROM pg_catalog.pg_prepared_xacts AS x JOIN pg_catalog.pg_roles AS r ON r.rolname = x.owner
WHERE r.oid = $1::oid
ORDER BY x.prepared, x.gid
