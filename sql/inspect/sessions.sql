-- How many sessions does each of these roles have? Roles without sessions are not in the result.
-- Parallel workers belong to their session. Logical replication workers run as the owner of a subscription, and end with it.
-- $1 oid[] roles
SELECT s.usesysid AS role, count(*) AS count
FROM pg_catalog.pg_stat_activity AS s
WHERE s.usesysid = ANY ($1::oid[]) AND s.pid <> pg_backend_pid()
  -- hidden without pg_read_all_stats
  AND coalesce(s.backend_type, '') <> 'parallel worker'
  AND coalesce(s.backend_type, '') NOT LIKE 'logical replication%'
GROUP BY 1
ORDER BY 1
