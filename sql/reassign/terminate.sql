-- Terminates the sessions of a role.
-- $1 oid role
SELECT pg_catalog.pg_terminate_backend(s.pid)
FROM pg_catalog.pg_stat_activity AS s
WHERE s.usesysid = $1::oid AND s.pid <> pg_backend_pid()
  AND coalesce(s.backend_type, '') <> 'parallel worker'
  AND coalesce(s.backend_type, '') NOT LIKE 'logical replication%'
