-- What was last applied for these roles in this database, in parallel arrays? And has a superuser suspended all changes, here or
-- in the home database? One row.
-- $1 oid[] roles   $2 text the name of the home database   $3 boolean with the last drift of each
SELECT
    a.roles, a.holders, a.digests, a.drift_counts, a.handled, a.last_drifts,
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
FROM (
    SELECT
        array_agg(s.role_oid) AS roles, array_agg(textsend(s.holder)) AS holders, array_agg(textsend(s.digest)) AS digests,
        array_agg(s.drift_count) AS drift_counts, array_agg(textsend(s.approve_handled)) AS handled,
        array_agg(textsend(coalesce(s.last_drift::text, 'null'))) FILTER (WHERE $3::boolean) AS last_drifts
    FROM pgrole.applied AS s
    WHERE s.role_oid = ANY ($1::oid[])
) AS a
