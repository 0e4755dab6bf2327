-- Since version 4. What changed in this database lately, and who changed it. One row for each object of a command, at most 100
-- of one command. Unlogged: a crash empties it, which loses no change, since every session reads everything at its start.
-- `xid`: of the whole transaction. `acting`: the setting `role`. `said`: the text of a plain GRANT, REVOKE or ALTER DEFAULT
-- PRIVILEGES.
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
-- The subtransaction catches every error except a full stack, which whoever runs the DDL could cause in order to hide it: one
-- call deeper, the DDL fails by itself. From 65 subtransactions with an id on, every other session has to look them up in
-- pg_subtrans; one that only reads has no id. Therefore, once its transaction has about 32 rows here, it only prepares the rows
-- and locks the table, which can then neither be dropped nor be locked by others, and the rows are written outside. It reads no
-- row of the table: that could end serializable transactions.
-- A dump that is restored beside the controller brings rows, and sets the sequence of `id` back: those ids exist already, so it
-- is set forward.
-- A NOTIFY makes PREPARE TRANSACTION fail, and a full queue fails every COMMIT with one.
CREATE OR REPLACE FUNCTION pgrole.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    most CONSTANT integer := 100;
    few  CONSTANT integer := 32;
    own_login  oid;
    own_system text;
    own_text   text;
    commands   text[];
    kinds      text[];
    classes    oid[];
    objects    oid[];
    identities text[];
    outside    boolean;
    written    integer;
BEGIN
    BEGIN
        IF tg_event = 'sql_drop' THEN
            SELECT array_agg('DROP'::text), array_agg(d.object_type), array_agg(d.classid), array_agg(d.objid),
                   array_agg(left(d.object_identity, 1000))
            INTO commands, kinds, classes, objects, identities
            FROM (
                SELECT o.*
                FROM pg_event_trigger_dropped_objects() AS o
                WHERE NOT o.is_temporary
                  AND (o.original OR o.object_type IN (
                      'table', 'view', 'materialized view', 'foreign table', 'table column', 'sequence', 'function',
                      'procedure', 'aggregate', 'schema', 'language', 'foreign-data wrapper', 'server'
                  ))
                LIMIT most
            ) AS d;
        ELSE
            SELECT array_agg(c.command_tag), array_agg(c.object_type), array_agg(c.classid), array_agg(c.objid),
                   array_agg(left(c.object_identity, 1000))
            INTO commands, kinds, classes, objects, identities
            FROM (
                SELECT o.*
                FROM pg_event_trigger_ddl_commands() AS o
                WHERE o.schema_name IS DISTINCT FROM 'pg_temp'
                LIMIT most
            ) AS c;
        END IF;
        -- of default privileges, PostgreSQL lists nothing
        IF commands IS NULL AND tg_tag = 'DROP OWNED' AND tg_event = 'ddl_command_end' THEN
            commands := ARRAY[tg_tag];
            kinds := ARRAY[NULL::text];
            classes := ARRAY[NULL::oid];
            objects := ARRAY[NULL::oid];
            identities := ARRAY[NULL::text];
        END IF;
        IF commands IS NULL THEN
            RETURN;
        END IF;
        own_login := (SELECT a.usesysid FROM pg_stat_get_activity(pg_backend_pid()) AS a);
        IF current_setting('server_version_num')::integer >= 160000 THEN
            own_system := system_user;
        END IF;
        IF octet_length(current_query()) <= 8192
            AND current_query() ~* '^\s*(grant|revoke|alter\s+default)\M[^;]*;?\s*$'
        THEN
            own_text := left(current_query(), 1000);
        END IF;
        outside := pg_stat_get_xact_tuples_inserted('pgrole.ddl_event'::regclass) >= few;
        IF outside THEN
            LOCK TABLE pgrole.ddl_event IN ROW EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '0', true);
        ELSE
            FOR attempt IN 1..2 LOOP
                INSERT INTO pgrole.ddl_event (
                    xid, pid, login, session, acting, system, app, addr, port, tag, command, kind, class, object, identity, said
                )
                SELECT pg_current_xact_id(), pg_backend_pid(), own_login, session_user, current_setting('role'), own_system,
                       current_setting('application_name'), inet_client_addr(), inet_client_port(), tg_tag,
                       n.command, n.kind, n.class, n.object, n.identity, own_text
                FROM unnest(commands, kinds, classes, objects, identities) AS n (command, kind, class, object, identity)
                ON CONFLICT DO NOTHING;
                GET DIAGNOSTICS written = ROW_COUNT;
                EXIT WHEN written = cardinality(commands);
                -- beyond the rows that pgrole.prune_events keeps: to read the largest id could end serializable transactions
                PERFORM setval('pgrole.ddl_event_id_seq'::regclass, nextval('pgrole.ddl_event_id_seq'::regclass) + 110000);
                EXIT WHEN written > 0;
            END LOOP;
        END IF;
        IF current_setting('max_prepared_transactions') = '0' AND pg_notification_queue_usage() < 0.5 THEN
            PERFORM pg_notify('pgrole', 'ddl');
        END IF;
    EXCEPTION
        WHEN statement_too_complex THEN
            RAISE;
        WHEN OTHERS THEN
            RETURN;
    END;
    IF outside THEN
        INSERT INTO pgrole.ddl_event (
            xid, pid, login, session, acting, system, app, addr, port, tag, command, kind, class, object, identity, said
        )
        SELECT pg_current_xact_id(), pg_backend_pid(), own_login, session_user, current_setting('role'), own_system,
               current_setting('application_name'), inet_client_addr(), inet_client_port(), tg_tag,
               n.command, n.kind, n.class, n.object, n.identity, own_text
        FROM unnest(commands, kinds, classes, objects, identities) AS n (command, kind, class, object, identity)
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Deletes rows older than `keep`, and the oldest beyond `most`; at most 10,000 at once. Returns their number. Also those of
-- transactions that have not begun here, which a dump of another server brought: a transaction will get the same id.
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
      AND (e.at < clock_timestamp() - keep OR e.id <= beyond OR e.xid >= pg_snapshot_xmax(pg_current_snapshot()));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;
