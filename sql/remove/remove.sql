-- Removes everything that is installed in this database: event triggers first, so that a restore without superuser succeeds and
-- nothing fires meanwhile. Writes nothing where nothing is installed.
DO $remove$
DECLARE
    installed CONSTANT boolean := EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
        WHERE n.nspname = 'pgrole' AND c.relname IN ('installation', 'drift_history', 'claim')
    );
    dropped name;
BEGIN
    FOR dropped IN
        SELECT t.evtname
        FROM pg_catalog.pg_event_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.evtfoid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'pgrole' AND t.evtname IN ('pgrole_on_ddl', 'pgrole_on_drop')
    LOOP
        EXECUTE pg_catalog.format('DROP EVENT TRIGGER %I', dropped);
    END LOOP;
    IF installed THEN
        DROP SCHEMA pgrole CASCADE;
    ELSIF EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole') THEN
        RAISE WARNING 'schema pgrole was not made by pgrole-controller, and stays';
    END IF;
    IF EXISTS (
        SELECT
        FROM pg_catalog.pg_db_role_setting AS s JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
        WHERE s.setrole = 0
          -- not of other databases, whose owners may have stored settings of any length
          AND CASE WHEN d.datname = pg_catalog.current_database() THEN EXISTS (
              SELECT FROM pg_catalog.unnest(s.setconfig) AS c (setting) WHERE c.setting LIKE 'pgrole.home=%'
          ) ELSE false END
    ) THEN
        EXECUTE pg_catalog.format('ALTER DATABASE %I RESET pgrole.home', pg_catalog.current_database());
    END IF;
END
$remove$;
