-- What of schema pgrole has this database, besides the parts that sql/inspect/installation.sql counts? One row.
-- Trusted: superusers, and the role that logged in. Names are sent as bytes: another database may have written them.
WITH trusted AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper OR r.rolname = session_user
),
event_trigger AS (
    SELECT
        t.evtname, t.evtevent, t.evtenabled,
        t.evtowner IN (SELECT o.oid FROM trusted AS o) AND p.proowner IN (SELECT o.oid FROM trusted AS o) AS trusted,
        n.nspname = 'pgrole' AND p.proname = 'on_ddl' AS recording
    FROM pg_catalog.pg_event_trigger AS t
    JOIN pg_catalog.pg_proc AS p ON p.oid = t.evtfoid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
)
SELECT
    textsend(format('%I', pg_catalog.current_database())) AS database,
    textsend(session_user::text) AS role, textsend(pg_catalog.current_database()::text) AS plain_name,
    (
        SELECT count(*) = 5
        FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
        WHERE n.nspname = 'pgrole'
          AND c.relname IN ('installation', 'turn_to_look', 'ddl_event', 'applied', 'drift_history')
    ) AS versioned,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_roles AS r ON r.oid = n.nspowner
        WHERE n.nspname = 'pgrole' AND NOT r.rolsuper
    ) AS plainly_owned,
    (
        SELECT count(*) = 2
        FROM event_trigger AS t
        WHERE t.trusted AND t.recording AND t.evtenabled = 'A'
          AND (t.evtname, t.evtevent) IN (('pgrole_on_ddl', 'ddl_command_end'), ('pgrole_on_drop', 'sql_drop'))
    ) AS armed,
    current_setting('max_prepared_transactions')::int AS max_prepared_transactions,
    -- whether it may use the language of the controller's own statements; null: the language does not exist
    (
        SELECT pg_catalog.has_language_privilege(l.oid, 'USAGE')
        FROM pg_catalog.pg_language AS l
        WHERE l.lanname = 'plpgsql'
    ) AS language,
    -- since 17: no event trigger fires in this session now, nor after the server's configuration is loaded again
    coalesce(current_setting('event_triggers', true) = 'off', false) AS silent,
    EXISTS (
        SELECT FROM pg_catalog.pg_settings AS s
        WHERE s.name = 'event_triggers' AND s.setting = 'off' AND s.source <> 'configuration file'
    ) AS spared,
    ARRAY(
        SELECT textsend(format('%I', t.evtname))
        FROM event_trigger AS t
        WHERE t.evtenabled <> 'D' AND NOT t.trusted
        ORDER BY t.evtname
        LIMIT 5
    ) AS foreign_event_triggers
