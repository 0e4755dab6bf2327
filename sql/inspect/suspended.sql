-- Has a superuser suspended all changes, by ALTER DATABASE … SET pgrole.suspend = on on the home database? One row.
-- Nobody else may set a parameter that PostgreSQL does not know. The settings of a database can be of any size, and its
-- owner writes them: more than a superuser would ever set are not read.
SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_db_role_setting AS s
    JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
    WHERE d.datname = pg_catalog.current_database() AND s.setrole = 0
      AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
          SELECT
          FROM pg_catalog.unnest(s.setconfig) AS c (setting)
          WHERE c.setting LIKE 'pgrole.suspend=%'
            AND pg_catalog.lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
      ) ELSE false END
) AS suspended
