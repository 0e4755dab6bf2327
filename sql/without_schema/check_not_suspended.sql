-- Has a superuser set pgrole.suspend on the home database or on the controller's role? Then this fails with PGR05.
-- See also sql/inspect/suspended.sql.
DO $suspended$
BEGIN
    IF EXISTS (
        SELECT
        FROM pg_catalog.pg_db_role_setting AS s
        WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()))
          AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
          AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
              SELECT
              FROM pg_catalog.unnest(s.setconfig) AS c (setting)
              WHERE c.setting LIKE 'pgrole.suspend=%' AND lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
          ) ELSE false END
    ) THEN
        RAISE EXCEPTION 'pgrole.suspend is on for database "%", or for the controller''s role', current_database() USING ERRCODE = 'PGR05';
    END IF;
END
$suspended$
