-- The event triggers of a database. Not part of the schema's script, since only superusers and the administrators of some
-- providers may create them: without, changes of privileges are polled. Writes nothing if they are there.
DO $events$
DECLARE
    function CONSTANT oid := (
        SELECT p.oid
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        JOIN pg_catalog.pg_roles AS r ON r.oid = p.proowner
        WHERE n.nspname = 'pgrole' AND p.proname = 'on_ddl' AND p.pronargs = 0 AND (r.rolsuper OR r.rolname = current_user)
    );
    tags CONSTANT text[] := ARRAY[
        'GRANT', 'REVOKE', 'ALTER DEFAULT PRIVILEGES', 'DROP OWNED',
        'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE VIEW', 'CREATE MATERIALIZED VIEW', 'CREATE FOREIGN TABLE',
        'IMPORT FOREIGN SCHEMA', 'CREATE SEQUENCE', 'CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE AGGREGATE', 'CREATE TYPE',
        'CREATE DOMAIN', 'CREATE SCHEMA', 'CREATE LANGUAGE', 'CREATE FOREIGN DATA WRAPPER', 'CREATE SERVER',
        'CREATE EXTENSION', 'ALTER EXTENSION',
        'ALTER TABLE', 'ALTER VIEW', 'ALTER MATERIALIZED VIEW', 'ALTER FOREIGN TABLE', 'ALTER SEQUENCE', 'ALTER FUNCTION',
        'ALTER PROCEDURE', 'ALTER ROUTINE', 'ALTER AGGREGATE', 'ALTER TYPE', 'ALTER DOMAIN', 'ALTER SCHEMA', 'ALTER LANGUAGE',
        'ALTER FOREIGN DATA WRAPPER', 'ALTER SERVER', 'ALTER LARGE OBJECT',
        -- renames tables and views, too; makes a view of a table before PostgreSQL 16
        'ALTER INDEX', 'CREATE RULE'
    ];
    wanted record;
BEGIN
    IF function IS NULL THEN
        -- its owner could make it run anything as whoever runs DDL
        RAISE EXCEPTION 'function pgrole.on_ddl is missing, or belongs to a role that is neither you nor a superuser'
            USING ERRCODE = 'undefined_function',
                  HINT = 'Remove schema pgrole from this database (`pgrole-controller sql --remove`), and install it as a superuser.';
    END IF;
    FOR wanted IN
        SELECT w.name, w.event, w.tags, t.evtname IS NOT NULL AS present,
               coalesce((t.evtfoid, t.evtevent) = (function, w.event) AND t.evttags IS NOT DISTINCT FROM w.tags, false) AS same,
               coalesce(t.evtenabled = 'A', false) AS armed
        FROM (VALUES
            ('pgrole_on_ddl', 'ddl_command_end', tags),
            ('pgrole_on_drop', 'sql_drop', NULL)
        ) AS w (name, event, tags)
        LEFT JOIN pg_catalog.pg_event_trigger AS t ON t.evtname = w.name
    LOOP
        IF wanted.present AND NOT wanted.same THEN
            EXECUTE pg_catalog.format('DROP EVENT TRIGGER %I', wanted.name);
        END IF;
        IF NOT wanted.same THEN
            EXECUTE pg_catalog.format(
                'CREATE EVENT TRIGGER %I ON %s %s EXECUTE FUNCTION pgrole.on_ddl()', wanted.name, wanted.event,
                CASE WHEN wanted.tags IS NOT NULL THEN 'WHEN TAG IN (' || (
                    SELECT pg_catalog.string_agg(pg_catalog.quote_literal(u.tag), ', ') FROM pg_catalog.unnest(wanted.tags) AS u (tag)
                ) || ')' END
            );
        END IF;
        IF NOT (wanted.same AND wanted.armed) THEN
            EXECUTE pg_catalog.format('ALTER EVENT TRIGGER %I ENABLE ALWAYS', wanted.name);
        END IF;
    END LOOP;
END
$events$;
