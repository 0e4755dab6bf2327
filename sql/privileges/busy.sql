-- Which of these tables does another session hold, or wait for, with a lock that conflicts with ours? One row for each.
-- $1 oid[] tables and other objects
SELECT DISTINCT l.relation AS oid
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'relation'
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
  AND l.relation = ANY ($1::oid[])
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
