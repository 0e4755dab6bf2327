-- Observes for as long as `lasting` whenever a transaction with an id has ended, to be CALLed as the only statement of its
-- message, again and again.
--
-- Each `tick` compares snapshots, which costs the same at any number of roles. A look at the catalogs costs more with more
-- roles, so after one there is none for `rest` times what it took. What it took when there was something to do does not
-- count: changes are rare, and the next one shall not wait for the last. COMMIT sends what was notified, and lets go of
-- the snapshot before the nap.
--
-- A procedure with a SET clause may not COMMIT, so the session's search_path is set, and put back at the end.
CREATE OR REPLACE PROCEDURE pgrole.watch(tick interval DEFAULT '10 ms', lasting interval DEFAULT '30 s')
LANGUAGE plpgsql
AS $$
DECLARE
    turn    CONSTANT bigint := 8102098230143320035;
    rest    CONSTANT float8 := 44;
    path    CONSTANT text := pg_catalog.current_setting('search_path');
    pause   float8;
    ends    float8;
    clock   float8;
    free_at float8;
    took    float8;
    cost    float8;
    seen    text;
    known   boolean;
    nap     float8;
    slept   text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);
    pause := date_part('epoch', tick);
    clock := date_part('epoch', clock_timestamp());
    ends := clock + date_part('epoch', lasting);
    free_at := clock;
    LOOP
        nap := pause;
        IF pg_current_snapshot()::text IS DISTINCT FROM seen THEN
            IF clock < free_at THEN
                nap := least(free_at, ends) - clock;
            -- another may hold it for as long as its transaction lasts; what it has seen, its commit tells
            ELSIF pg_try_advisory_xact_lock(turn) THEN
                known := seen IS NOT NULL;
                seen := pgrole.observe();
                took := date_part('epoch', clock_timestamp()) - clock;
                -- the first may have had plans to make
                IF known AND pg_current_xact_id_if_assigned() IS NULL THEN
                    -- one look that was held up shall not make the next one late
                    cost := least(took, 2 * coalesce(cost, took));
                END IF;
                free_at := clock + took + rest * coalesce(cost, 0);
            END IF;
        END IF;
        COMMIT;
        slept := pg_sleep(nap);
        clock := date_part('epoch', clock_timestamp());
        EXIT WHEN clock >= ends;
    END LOOP;
    PERFORM set_config('search_path', path, false);
END
$$;
