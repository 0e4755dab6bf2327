-- Which open or prepared transactions are about to depend on a role? A transaction that creates an object as the role, or
-- grants it a privilege, holds a lock on the role until it ends; DROP ROLE waits for it.
-- $1 oid role
SELECT textsend(s.datname::text) AS database, coalesce(s.pid, 0) AS pid
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = l.pid
WHERE l.locktype = 'object' AND l.database = 0 AND l.classid = 'pg_catalog.pg_authid'::regclass AND l.objid = $1::oid
  AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY l.pid
