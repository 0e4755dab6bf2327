-- Do the event triggers of schema pgrole record every change in this database, and which do others run here? One row.
-- Names are sent as bytes: another database may have written them in its encoding.
-- `others`: untrusted ones. `may_be_off`: the server knows the setting that turns them off for a session.
-- $1 bytea the name of the controller's role
-- `plainly_owned`: the controller's role owns schema pgrole, and is no superuser. `uses`: unless that schema is a superuser's, and
-- the controller's role may not use all of it.
WITH controller AS (
    SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles AS r WHERE textsend(r.rolname::text) = $1::bytea
),
trusted AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper OR textsend(r.rolname::text) = $1::bytea
),
event_trigger AS (
    SELECT
        t.evtname, t.evtevent, t.evtenabled,
        t.evtowner IN (SELECT o.oid FROM trusted AS o) AND p.proowner IN (SELECT o.oid FROM trusted AS o) AS trusted,
        n.nspname = 'pgrole' AND p.proname = 'on_ddl' AS recording
    FROM pg_catalog.pg_event_trigger AS t
    JOIN pg_catalog.pg_proc AS p ON p.oid = t.evtfoid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
),
own AS (
    SELECT t.evtname, t.evtenabled
    FROM event_trigger AS t
    WHERE t.trusted AND t.recording
      AND (t.evtname, t.evtevent) IN (('pgrole_on_ddl', 'ddl_command_end'), ('pgrole_on_drop', 'sql_drop'))
)
SELECT
    textsend(pg_catalog.current_database()::text) AS database,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n JOIN controller AS r ON r.oid = n.nspowner
        WHERE n.nspname = 'pgrole' AND NOT r.rolsuper
    ) AS plainly_owned,
    coalesce(
        (SELECT pg_catalog.has_database_privilege(r.oid, pg_catalog.current_database(), 'CONNECT') FROM controller AS r), true
    ) AS connects,
    NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n
        JOIN pg_catalog.pg_roles AS o ON o.oid = n.nspowner AND o.rolsuper
        CROSS JOIN controller AS r
        WHERE n.nspname = 'pgrole' AND NOT r.rolsuper AND (
            NOT pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE')
            OR EXISTS (
                SELECT
                FROM pg_catalog.pg_class AS c, pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
                WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
                  AND NOT pg_catalog.has_table_privilege(r.oid, c.oid, p.privilege)
            )
            OR EXISTS (
                SELECT
                FROM pg_catalog.pg_proc AS f
                WHERE f.pronamespace = n.oid AND NOT pg_catalog.has_function_privilege(r.oid, f.oid, 'EXECUTE')
            )
        )
    ) AS uses,
    -- null: the language does not exist
    (
        SELECT coalesce((SELECT pg_catalog.has_language_privilege(r.oid, l.oid, 'USAGE') FROM controller AS r), true)
        FROM pg_catalog.pg_language AS l
        WHERE l.lanname = 'plpgsql'
    ) AS language,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
        WHERE n.nspname = 'pgrole' AND c.relname = 'claim'
    ) AS home,
    (SELECT count(*) FROM own)::int AS installed,
    ARRAY(SELECT textsend(o.evtname::text) FROM own AS o WHERE o.evtenabled <> 'A' ORDER BY 1) AS disabled,
    -- they keep the controller from installing the schema
    ARRAY(
        SELECT textsend(format('%I', b.pubname))
        FROM pg_catalog.pg_publication AS b
        WHERE b.puballtables AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole')
        ORDER BY b.pubname
        LIMIT 5
    ) AS publications,
    ARRAY(
        SELECT textsend(t.evtname::text)
        FROM event_trigger AS t
        WHERE t.evtenabled <> 'D' AND NOT t.trusted
        ORDER BY t.evtname
        LIMIT 5
    ) AS others,
    current_setting('event_triggers', true) IS NOT NULL AS may_be_off
