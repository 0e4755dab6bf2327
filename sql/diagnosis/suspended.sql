-- By which settings are changes suspended? As sql/inspect/suspended.sql, for a role that need not be the one that logged in.
-- $1 bytea the name of the controller's role
SELECT s.setdatabase <> 0 AS of_database, s.setrole <> 0 AS of_role
FROM pg_catalog.pg_db_role_setting AS s
WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
  AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE textsend(r.rolname::text) = $1::bytea))
  AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
      SELECT
      FROM pg_catalog.unnest(s.setconfig) AS c (setting)
      WHERE c.setting LIKE 'pgrole.suspend=%'
        AND pg_catalog.lower(pg_catalog.substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
  ) ELSE false END
LIMIT 4
