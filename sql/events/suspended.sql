-- Has a superuser suspended all changes, by a setting of this database, of the home database or of the role that logged in?
-- And what time is it there? One row. As sql/inspect/suspended.sql.
-- $1 text the name of the home database
SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_db_role_setting AS s
    WHERE s.setdatabase IN (0, (
        SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()
    ), (
        SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = $1::name
    ))
      AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
      AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
          SELECT
          FROM pg_catalog.unnest(s.setconfig) AS c (setting)
          WHERE c.setting LIKE 'pgrole.suspend=%'
            AND pg_catalog.lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
      ) ELSE false END
) AS suspended, pg_catalog.clock_timestamp() AS at
