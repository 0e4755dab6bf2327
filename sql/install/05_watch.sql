-- Observes for as long as `lasting` whenever a transaction with an id has ended, to be CALLed as the only statement of its
-- message, again and again.
--
-- Each `tick` compares snapshots, which costs the same at any number of roles. A look at the catalogs costs more with more
-- roles, so after one there is none for `rest` times what it took, and a little more. What it took when there was something
-- to do does not count: changes are rare, and the next one shall not wait for the last. COMMIT sends what was notified, and
-- lets go of the snapshot before the nap.
--
-- The schema may be dropped while this runs, and made by whoever may create one; so before anything in it is called, a lock
-- keeps it from being dropped, and its owner and those who may create in it must be trusted: our role, or superusers.
-- PGR02: they are not.
--
-- A procedure with a SET clause may not COMMIT, so the session's search_path is set, and put back at the end.
CREATE OR REPLACE PROCEDURE pgrole.watch(tick interval DEFAULT '10 ms', lasting interval DEFAULT '30 s')
LANGUAGE plpgsql
AS $$
DECLARE
    rest    CONSTANT float8 := 40;
    round   CONSTANT float8 := 0.003; -- what a round costs beside its look, in the same measure
    longest CONSTANT float8 := 1;
    path    CONSTANT text := pg_catalog.current_setting('search_path');
    pause   float8;
    ends    float8;
    clock   float8;
    free_at float8;
    took    float8;
    before  float8;
    cost    float8 := 0.00025;
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
            ELSE
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
                    RAISE EXCEPTION 'schema pgrole is not trusted any more, nothing in it is called' USING ERRCODE = 'PGR02';
                END IF;
                -- another may hold it for as long as its transaction lasts; what it has seen, its commit tells
                IF pgrole.try_turn_to_look() THEN
                    known := seen IS NOT NULL;
                    seen := pgrole.observe();
                    took := date_part('epoch', clock_timestamp()) - clock;
                    -- the first may have had plans to make
                    IF known AND pg_current_xact_id_if_assigned() IS NULL THEN
                        -- looks that were held up shall not make the next one late
                        cost := least(took, before, 2 * cost);
                        before := took;
                    END IF;
                    free_at := clock + took + least(rest * cost + round, longest);
                END IF;
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
