-- Since PostgreSQL 17: are event triggers off in the controller's sessions with databases? One row. They are if its role has that
-- setting, or may set it (sql/inspect/turn_off_event_triggers.sql).
-- $1 bytea the name of the controller's role
SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_roles AS r
    WHERE textsend(r.rolname::text) = $1::bytea
      AND (
          pg_catalog.has_parameter_privilege(r.oid, 'event_triggers', 'SET')
          OR EXISTS (
              SELECT
              FROM pg_catalog.pg_db_role_setting AS s
              WHERE s.setrole = r.oid AND s.setdatabase = 0 AND pg_catalog.pg_column_size(s.setconfig) <= 65536
                AND 'event_triggers=off' = ANY (s.setconfig)
          )
      )
) AS turned_off
