-- Since PostgreSQL 17: by which setting do no event triggers fire in other sessions of this database? One row, before 17 without
-- any. A setting of the database counts more than one of all roles, and that more than the server's configuration.
-- Settings of a database can have any size, so very large ones are not read.
WITH setting AS (
    SELECT
        s.setdatabase <> 0 AS of_database, pg_catalog.lower(pg_catalog.split_part(c.setting, '=', 2)) AS value
    FROM pg_catalog.pg_db_role_setting AS s
    CROSS JOIN LATERAL pg_catalog.unnest(
        CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN s.setconfig END
    ) AS c (setting)
    WHERE s.setrole = 0
      AND s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()))
      AND c.setting LIKE 'event_triggers=%'
    ORDER BY 1 DESC
    LIMIT 1
)
SELECT
    (SELECT s.of_database FROM setting AS s) AS of_database,
    (SELECT s.value IN ('off', 'of', 'false', 'fals', 'fal', 'fa', 'f', 'no', 'n', '0') FROM setting AS s) AS off,
    -- only superusers may read it; for others, the session has that value, or replaced it (turn_off_event_triggers.sql)
    current_setting('is_superuser') = 'on' AND current_setting('event_triggers', true) IS NOT NULL AS ask_configuration,
    EXISTS (
        SELECT FROM pg_catalog.pg_settings AS p
        WHERE p.name = 'event_triggers'
          AND (p.setting = 'off' AND p.source = 'configuration file' OR p.reset_val = 'off' AND p.source = 'session')
    ) AS configured_off
