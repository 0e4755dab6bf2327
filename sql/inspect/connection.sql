-- Which server is this, and as which role does the session act? One row.
-- It also resets settings that come from the database or the role, since other roles may have set them to change what the
-- controller's statements do. They are reset to PostgreSQL's defaults: the values of the server's configuration are no longer
-- visible. Settings that only superusers can make are kept, e.g. logging, unless they change what statements do; so are those
-- that the documentation tells administrators to set on the controller's role.
WITH pinned (name, value) AS (
    VALUES
        ('restrict_nonsystem_relation_kind', ''), ('session_replication_role', 'origin'), ('transaction_timeout', '0')
),
bent AS MATERIALIZED (
    SELECT s.name, coalesce(p.value, s.boot_val) AS value
    FROM pg_catalog.pg_settings AS s LEFT JOIN pinned AS p ON p.name = s.name
    WHERE (s.context = 'user' OR current_setting('is_superuser') = 'on')
      AND CASE
          WHEN p.name IS NOT NULL THEN s.setting <> p.value
          -- off only for the login: event triggers for the controller's changes are the administrator's choice
          WHEN s.name = 'event_triggers' THEN s.source = 'client'
          WHEN s.context <> 'user' OR s.boot_val IS NULL THEN false
          -- set at the start of each transaction
          WHEN s.name IN ('transaction_deferrable', 'transaction_isolation', 'transaction_read_only') THEN false
          WHEN s.name IN ('createrole_self_grant', 'scram_iterations') THEN s.source = 'database'
          ELSE s.source IN ('database', 'user', 'database user')
      END
)
SELECT
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    current_setting('server_version_num')::int AS version_number,
    current_setting('is_superuser') = 'on' AS superuser,
    -- by oid; NULL: no such role
    (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) AS acting,
    (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user) AS session,
    (SELECT a.usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a) AS authenticated,
    textsend(current_user::text) AS acting_name,
    CASE WHEN current_user <> session_user THEN (
        SELECT string_agg(textsend(CASE
            WHEN s.setrole = 0 AND s.setdatabase = 0 THEN 'ALTER ROLE ALL RESET role'
            WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET role', d.datname)
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET role', session_user)
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET role', session_user, d.datname)
        END), '; '::bytea ORDER BY s.setdatabase, s.setrole)
        FROM pg_catalog.pg_db_role_setting AS s
        CROSS JOIN pg_catalog.pg_database AS d
        WHERE d.datname = current_database() AND s.setdatabase IN (0, d.oid)
          AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
          AND 'role=' || current_user = ANY (s.setconfig)
    ) END AS remedies,
    (SELECT count(pg_catalog.set_config(b.name, b.value, false)) FROM bent AS b) AS reset
