-- How many sessions has each of these roles? A role without any is not in the result. What parallel workers do is their
-- session's; logical replication works in the name of a subscription's owner, and goes with the subscription.
-- $1 oid[] roles
SELECT s.usesysid AS role, count(*) AS count
FROM pg_catalog.pg_stat_activity AS s
WHERE s.usesysid = ANY ($1::oid[]) AND s.pid <> pg_backend_pid()
  -- without pg_read_all_stats the type is hidden
  AND coalesce(s.backend_type, '') <> 'parallel worker'
  AND coalesce(s.backend_type, '') NOT LIKE 'logical replication%'
GROUP BY 1
ORDER BY 1
