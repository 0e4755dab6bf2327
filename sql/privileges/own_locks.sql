-- Which tables of schema pgrole do other sessions lock so that the controller can neither read nor write them, or not write them?
-- One row for each table and session, at most 20. A prepared transaction has no process.
SELECT textsend(c.relname::text) AS name, l.pid, textsend(r.rolname::text) AS role
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
WHERE n.nspname = 'pgrole' AND c.relkind IN ('r', 'p', 'v') AND l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND (
      l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      OR (c.relname = 'turn_to_change' AND l.mode = 'ShareUpdateExclusiveLock')
  )
ORDER BY c.relname, l.pid
LIMIT 20
