-- Observes for the duration `lasting` whenever a transaction with an id has ended. CALL it repeatedly, as the only statement
-- of its message.
--
-- Each `tick` compares snapshots. Its cost does not depend on the number of roles; it is one expression, since each additional
-- one adds to the cost. Ticks without a change share a transaction: each expression has its own snapshot, and the snapshot that
-- the transaction holds does not delay vacuum as long as no transaction with an id ends; the first tick after one commits.
-- CREATE INDEX CONCURRENTLY waits for such a snapshot nevertheless, so a transaction lasts no longer than the time since the
-- last change, and at most a second.
--
-- The cost of an observation grows with the number of roles, so the procedure then pauses for slightly more than `rest` times
-- its duration. Observations that found changes do not count: changes are rare, and the next one must not wait for the last.
-- A COMMIT follows each observation: it sends the notifications and releases the locks.
--
-- While this runs, the schema can be dropped and created again by any role that can create schemas. Before anything in it is
-- called, a lock prevents dropping it, and its owner and the roles that can create in it must be trusted: the controller's
-- role or superusers. Otherwise it fails with PGR02.
--
-- A procedure with a SET clause cannot COMMIT, so it sets the session's search_path and restores it at the end.
CREATE OR REPLACE PROCEDURE pgrole.watch(tick interval DEFAULT '10 ms', lasting interval DEFAULT '30 s')
LANGUAGE plpgsql
AS $$
DECLARE
    rest    CONSTANT float8 := 36;
    round   CONSTANT float8 := 0.003; -- fixed part of the pause after an observation, in seconds
    longest CONSTANT float8 := 1;
    shared  CONSTANT float8 := 1;
    path    CONSTANT text := pg_catalog.current_setting('search_path');
    timeout CONSTANT text := pg_catalog.current_setting('transaction_timeout', true); -- NULL before PostgreSQL 17
    pause   float8;
    ends    float8;
    clock   float8;
    changed boolean;
    moved   float8;
    free_at float8;
    took    float8;
    before  float8;
    cost    float8 := 0.00025;
    seen    text;
    known   boolean;
    until   timestamptz;
    slept   text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);
    IF timeout IS NOT NULL THEN
        PERFORM set_config('transaction_timeout', '0', false);
    END IF;
    pause := date_part('epoch', tick);
    clock := date_part('epoch', clock_timestamp());
    ends := clock + date_part('epoch', lasting);
    free_at := clock;
    moved := clock;
    LOOP
        until := to_timestamp(least(clock + least(greatest(clock - moved, pause), shared), ends));
        WHILE CASE
            WHEN pg_current_snapshot()::text IS DISTINCT FROM seen THEN false
            WHEN clock_timestamp() >= until THEN false
            ELSE pg_sleep(pause) IS NOT NULL
        END LOOP
        END LOOP;

        clock := date_part('epoch', clock_timestamp());
        changed := pg_current_snapshot()::text IS DISTINCT FROM seen;
        IF changed AND clock < free_at THEN
            COMMIT;
            slept := pg_sleep(least(free_at, ends) - clock);
            clock := date_part('epoch', clock_timestamp());
        END IF;
        IF changed THEN
            moved := clock;
        END IF;
        IF changed AND clock >= free_at THEN
            LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE;
            IF EXISTS (
                SELECT
                FROM pg_catalog.pg_namespace AS n
                CROSS JOIN LATERAL (
                    SELECT n.nspowner
                    UNION ALL
                    SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) AS a WHERE a.privilege_type = 'CREATE'
                    UNION ALL
                    SELECT p.proowner
                    FROM pg_catalog.pg_proc AS p
                    WHERE p.pronamespace = n.oid AND p.proname IN ('try_turn_to_look', 'observe')
                ) AS had (owner)
                LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = had.owner
                WHERE n.nspname = 'pgrole' AND (r.rolsuper OR r.rolname = session_user) IS NOT TRUE
            ) THEN
                RAISE EXCEPTION 'schema pgrole is no longer trusted, and nothing in it is called' USING ERRCODE = 'PGR02';
            END IF;
            free_at := clock + pause;
            -- another session may hold the lock until its transaction ends; its commit announces what it observed
            IF pgrole.try_turn_to_look() THEN
                known := seen IS NOT NULL;
                seen := pgrole.observe();
                took := date_part('epoch', clock_timestamp()) - clock;
                -- the first observation may include planning
                IF known AND pg_current_xact_id_if_assigned() IS NULL THEN
                    -- an observation that was delayed must not delay the next one
                    cost := least(took, before, 2 * cost);
                    before := took;
                END IF;
                free_at := clock + greatest(pause, took + least(rest * cost + round, longest));
            END IF;
        END IF;
        COMMIT;
        clock := date_part('epoch', clock_timestamp());
        EXIT WHEN clock >= ends;
    END LOOP;
    PERFORM set_config('search_path', path, false);
    IF timeout IS NOT NULL THEN
        PERFORM set_config('transaction_timeout', timeout, false);
    END IF;
END
$$;
