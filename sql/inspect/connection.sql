-- As whom are we connected, and to what? Sets back what a database or a role has set, which others may have done: no such
-- setting bends what we do. One row.
-- The values are PostgreSQL's defaults: what the server's own configuration would have given cannot be seen any more. Kept
-- is what only superusers can set, as logging, but for what bends us; and what an administrator is told to set on our role.
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
          -- what an administrator lets happen with our changes does, once we are in
          WHEN s.name = 'event_triggers' THEN s.source = 'client'
          WHEN s.context <> 'user' OR s.boot_val IS NULL THEN false
          -- of one transaction, and begun anew with each
          WHEN s.name IN ('transaction_deferrable', 'transaction_isolation', 'transaction_read_only') THEN false
          WHEN s.name IN ('createrole_self_grant', 'scram_iterations') THEN s.source = 'database'
          ELSE s.source IN ('database', 'user', 'database user')
      END
)
SELECT
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    current_setting('server_version_num')::int AS version_number,
    current_setting('is_superuser') = 'on' AS superuser,
    -- by their numbers: NULL is nobody
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
