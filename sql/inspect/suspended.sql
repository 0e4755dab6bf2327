-- Has a superuser suspended all changes, by ALTER DATABASE ... SET pgrole.suspend = on for the home database, or by
-- ALTER ROLE ... SET for the role that logged in? One row.
-- Only superusers can set a parameter that PostgreSQL does not know. Settings of a database can have any size, and its owner
-- can add some, so very large ones are not read: the owner can hide the first setting that way, but not the second.
SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_db_role_setting AS s
    WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
      AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
      AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
          SELECT
          FROM pg_catalog.unnest(s.setconfig) AS c (setting)
          WHERE c.setting LIKE 'pgrole.suspend=%'
            AND pg_catalog.lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
      ) ELSE false END
) AS suspended
