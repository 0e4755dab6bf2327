-- Since version 4. What changed in this database lately, and who changed it. One row for each object of a command, at most 100
-- of one command. Unlogged: a crash empties it, which loses no change, since every session reads everything at its start.
-- `xid`: of the whole transaction. `acting`: the setting `role`. `said`: the text of a plain GRANT, REVOKE or ALTER DEFAULT
-- PRIVILEGES. A row without `kind` stands for a command whose objects are not listed: they have to be looked for.
CREATE UNLOGGED TABLE IF NOT EXISTS pgrole.ddl_event (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid      xid8 NOT NULL,
    pid      integer NOT NULL,
    login    oid,
    session  name NOT NULL,
    acting   text NOT NULL,
    system   text,
    app      text NOT NULL,
    addr     inet,
    port     integer,
    tag      text NOT NULL,
    command  text NOT NULL,
    kind     text,
    class    oid,
    object   oid,
    identity text,
    said     text
);
CREATE INDEX IF NOT EXISTS ddl_event_xid ON pgrole.ddl_event (xid);

-- Called by both event triggers. It must never fail, since that would fail other people's DDL.
-- Each command costs a subtransaction, which catches every error. From 65 subtransactions with an id on, every other session has
-- to look them up in pg_subtrans, so only the first commands of a transaction have one: until it has 32 rows here. The others
-- add one row each without. By then the transaction holds its locks on the table, which therefore can neither be dropped nor
-- locked by others. A subtransaction that only reads has no id.
-- A NOTIFY makes PREPARE TRANSACTION fail, and a full queue fails every COMMIT with one.
CREATE OR REPLACE FUNCTION pgrole.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    most   CONSTANT integer := 100;
    few    CONSTANT integer := 32;
    own_login  oid;
    own_system text;
    own_text   text;
    written    integer := 0;
    alone      boolean := false;
BEGIN
    BEGIN
        own_text := current_query();
        own_text := CASE
            WHEN octet_length(own_text) > 8192 THEN NULL
            WHEN own_text ~* '^\s*(grant|revoke|alter\s+default)\M[^;]*;?\s*$' THEN left(own_text, 1000)
        END;
        own_login := (SELECT a.usesysid FROM pg_stat_get_activity(pg_backend_pid()) AS a);
        IF current_setting('server_version_num')::integer >= 160000 THEN
            own_system := system_user;
        END IF;
        alone := (
            SELECT count(*) = few
            FROM (SELECT FROM pgrole.ddl_event AS e WHERE e.xid = pg_current_xact_id_if_assigned() LIMIT few) AS o
        );
        IF alone THEN
            IF tg_event = 'sql_drop' THEN
                alone := EXISTS (SELECT FROM pg_event_trigger_dropped_objects() AS d WHERE NOT d.is_temporary);
            ELSE
                alone := EXISTS (
                    SELECT FROM pg_event_trigger_ddl_commands() AS c WHERE c.schema_name IS DISTINCT FROM 'pg_temp'
                );
            END IF;
            written := alone::integer;
            -- from here on nothing may fail, and waiting is better
            PERFORM set_config('lock_timeout', '0', true);
        ELSIF tg_event = 'sql_drop' THEN
            INSERT INTO pgrole.ddl_event (
                xid, pid, login, session, acting, system, app, addr, port, tag, command, kind, class, object, identity, said
            )
            SELECT
                pg_current_xact_id(), pg_backend_pid(), own_login, session_user, current_setting('role'), own_system,
                current_setting('application_name'), inet_client_addr(), inet_client_port(), tg_tag,
                'DROP', d.object_type, d.classid, d.objid, left(d.object_identity, 1000), own_text
            FROM pg_event_trigger_dropped_objects() AS d
            WHERE NOT d.is_temporary
              AND (d.original OR d.object_type IN (
                  'table', 'view', 'materialized view', 'foreign table', 'table column', 'sequence', 'function', 'procedure',
                  'aggregate', 'schema', 'language', 'foreign-data wrapper', 'server'
              ))
            LIMIT most;
            GET DIAGNOSTICS written = ROW_COUNT;
        ELSE
            INSERT INTO pgrole.ddl_event (
                xid, pid, login, session, acting, system, app, addr, port, tag, command, kind, class, object, identity, said
            )
            SELECT
                pg_current_xact_id(), pg_backend_pid(), own_login, session_user, current_setting('role'), own_system,
                current_setting('application_name'), inet_client_addr(), inet_client_port(), tg_tag,
                c.command_tag, c.object_type, c.classid, c.objid, left(c.object_identity, 1000), own_text
            FROM pg_event_trigger_ddl_commands() AS c
            WHERE c.schema_name IS DISTINCT FROM 'pg_temp'
            LIMIT most;
            GET DIAGNOSTICS written = ROW_COUNT;
        END IF;
        IF written > 0 AND current_setting('max_prepared_transactions') = '0' AND pg_notification_queue_usage() < 0.5 THEN
            PERFORM pg_notify('pgrole', 'ddl');
        END IF;
    EXCEPTION WHEN OTHERS THEN
        alone := false;
    END;
    IF alone THEN
        INSERT INTO pgrole.ddl_event (xid, pid, login, session, acting, system, app, addr, port, tag, command, said)
        VALUES (
            pg_current_xact_id(), pg_backend_pid(), own_login, session_user, current_setting('role'), own_system,
            current_setting('application_name'), inet_client_addr(), inet_client_port(), tg_tag, tg_tag, own_text
        );
    END IF;
END
$$;

-- Deletes rows older than `keep`, and the oldest beyond `most`; at most 10,000 at once. Returns their number.
CREATE OR REPLACE FUNCTION pgrole.prune_events(keep interval DEFAULT '7 days', most bigint DEFAULT 100000) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    beyond bigint := (SELECT e.id FROM pgrole.ddl_event AS e ORDER BY e.id DESC OFFSET most LIMIT 1);
    pruned bigint;
BEGIN
    DELETE FROM pgrole.ddl_event AS e
    WHERE e.id = ANY (ARRAY(SELECT o.id FROM pgrole.ddl_event AS o ORDER BY o.id LIMIT 10000))
      AND (e.at < clock_timestamp() - keep OR e.id <= beyond);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;
