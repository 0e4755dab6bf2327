-- What was last applied for these roles in this database, in an array of objects? And has a superuser suspended all changes, here
-- or in the home database? One row.
-- $1 oid[] roles   $2 text the name of the home database   $3 boolean with the last drift of each
SELECT
    (
        SELECT textsend(json_agg(json_build_object(
            'role', a.role_oid::bigint, 'holder', a.holder, 'digest', a.digest, 'drift_count', a.drift_count,
            'approve_handled', a.approve_handled,
            'last_drift', CASE WHEN $3::boolean THEN a.last_drift END
        ))::text)
        FROM pgrole.applied AS a
        WHERE a.role_oid = ANY ($1::oid[])
    ) AS applied,
    -- as sql/events/suspended.sql
    EXISTS (
        SELECT
        FROM pg_catalog.pg_db_role_setting AS s
        WHERE s.setdatabase IN (0, (
            SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()
        ), (
            SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = $2::text::name
        ))
          AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
          AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
              SELECT
              FROM pg_catalog.unnest(s.setconfig) AS c (setting)
              WHERE c.setting LIKE 'pgrole.suspend=%'
                AND pg_catalog.lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
          ) ELSE false END
    ) AS suspended
