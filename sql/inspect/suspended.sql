-- Has a superuser suspended all changes, by ALTER DATABASE … SET pgrole.suspend = on on the home database, or by ALTER ROLE …
-- SET on the role that logged in? One row.
-- Nobody else may set a parameter that PostgreSQL does not know. The settings of a database can be of any size, and its
-- owner writes them, so those of more than a superuser would ever set are not read: an owner can hide the first that way,
-- and cannot touch the second.
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
