-- Since version 3. Which process leads an installation, as this server knows it: a Lease of Kubernetes does not fence, since
-- whoever holds it can be paused, and go on when it is another's.
-- Who is to lead draws a number, then makes sure that the Lease is its own still, and then takes the lead with that number.
-- So whoever comes to the Lease later has a later number, whatever the clocks say and whatever was restored in Kubernetes.
-- The time of day is in it for one reason: a number is not drawn again after the table was dropped, or restored.
CREATE TABLE IF NOT EXISTS pgrole.leader (
    installation text COLLATE "C" PRIMARY KEY,
    drawn        bigint NOT NULL,
    number       bigint NOT NULL DEFAULT 0,
    holder       text NOT NULL DEFAULT '',
    since        timestamptz
);

-- Since version 4. When the leader last showed that it is alive, by this server's clock: it does so every 5 s.
ALTER TABLE pgrole.leader ADD COLUMN IF NOT EXISTS heartbeat timestamptz;

CREATE OR REPLACE FUNCTION pgrole.draw_number(of_installation text) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO pgrole.leader AS l (installation, drawn)
    VALUES (of_installation, (EXTRACT(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ON CONFLICT (installation) DO UPDATE SET drawn = greatest(l.drawn + 1, excluded.drawn)
    RETURNING l.drawn
$$;

-- The number to bring along from now on. Whoever leads already keeps theirs: two sessions of one process, with a server that
-- has two names, do not end each other's lead. Fails with PGR04 when another leads with a later number. From its commit on
-- whoever led before changes nothing any more, and no change of theirs is under way.
CREATE OR REPLACE FUNCTION pgrole.lead(of_installation text, with_number bigint, new_holder text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    led_with bigint;
BEGIN
    PERFORM pgrole.take_turn();
    SELECT l.number INTO led_with FROM pgrole.leader AS l
    WHERE l.installation = of_installation AND l.holder = new_holder;
    IF FOUND THEN
        RETURN led_with;
    END IF;
    UPDATE pgrole.leader AS l
    SET number = with_number, holder = new_holder, since = now(), heartbeat = clock_timestamp()
    WHERE l.installation = of_installation AND l.number < with_number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another process leads' USING ERRCODE = 'PGR04';
    END IF;
    RETURN with_number;
END
$$;

-- Fails with PGR04 unless the one with this number still leads.
CREATE OR REPLACE FUNCTION pgrole.check_lead(of_installation text, with_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgrole.leader AS l WHERE l.installation = of_installation AND l.number = with_number) THEN
        RAISE EXCEPTION 'another process leads' USING ERRCODE = 'PGR04';
    END IF;
END
$$;

-- Since version 4. The leader with this number is alive. False: it does not lead any more.
CREATE OR REPLACE FUNCTION pgrole.beat(of_installation text, with_number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- a sign of life need not last, and shall not wait for a standby of this server
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE pgrole.leader AS l SET heartbeat = clock_timestamp()
    WHERE l.installation = of_installation AND l.number = with_number;
    RETURN FOUND;
END
$$;

-- Since version 4. For a process that cannot reach Kubernetes, and so cannot take the Lease: the number of its lead when the
-- leader has shown no life for `silence`, or never has and Kubernetes has been `away` for so long; else NULL. Whoever holds
-- the Lease takes the lead back with `lead`, which asks for no heartbeat. Where nobody ever led there is nothing to keep.
CREATE OR REPLACE FUNCTION pgrole.lead_while_away(
    of_installation text, new_holder text, away interval, silence interval DEFAULT '15 s'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    leader record;
BEGIN
    PERFORM pgrole.take_turn();
    SELECT l.* INTO leader FROM pgrole.leader AS l WHERE l.installation = of_installation AND l.number > 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF leader.holder <> new_holder THEN
        -- a heartbeat in the future was written before the clock was set back
        IF away < silence OR abs(extract(epoch FROM clock_timestamp() - leader.heartbeat)) < extract(epoch FROM silence) THEN
            RETURN NULL;
        END IF;
        leader.number := pgrole.draw_number(of_installation);
    END IF;
    UPDATE pgrole.leader AS l
    SET number = leader.number, holder = new_holder, heartbeat = clock_timestamp(),
        since = CASE WHEN l.holder = new_holder THEN l.since ELSE now() END
    WHERE l.installation = of_installation;
    RETURN leader.number;
END
$$;
