-- Since version 3. The leader of an installation, as known to this server. A Kubernetes Lease does not fence: its holder can
-- be paused and continue after another process has taken the Lease.
-- A candidate draws a number, verifies that it still holds the Lease, and then becomes leader with that number. Therefore a
-- later holder of the Lease has a higher number, whatever the clocks show and whatever was restored in Kubernetes.
-- The number includes the time of day so that no number is drawn again after the table is dropped or restored.
CREATE TABLE IF NOT EXISTS pgrole.leader (
    installation text COLLATE "C" PRIMARY KEY,
    drawn        bigint NOT NULL,
    number       bigint NOT NULL DEFAULT 0,
    holder       text NOT NULL DEFAULT '',
    since        timestamptz
);

-- Since version 4. Time of the leader's last heartbeat, by this server's clock. The leader sends one every 5 s.
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

-- Makes this process the leader and returns the number to use from now on. A process that already leads keeps its number, so
-- that two sessions of one process, with a server that has two names, do not end each other's leadership. Fails with PGR04 if
-- another process leads with a higher number. After its commit, the previous leader changes nothing, and none of its changes
-- is in progress.
CREATE OR REPLACE FUNCTION pgrole.lead(of_installation text, with_number bigint, new_holder text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    led_with bigint;
BEGIN
    PERFORM pgrole.lock_changes();
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

-- Fails with PGR04 unless the process with this number still leads.
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

-- Since version 4. Records a heartbeat of the leader with this number. Returns false if it no longer leads.
CREATE OR REPLACE FUNCTION pgrole.beat(of_installation text, with_number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- a heartbeat need not be durable, and must not wait for a standby of this server
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE pgrole.leader AS l SET heartbeat = clock_timestamp()
    WHERE l.installation = of_installation AND l.number = with_number;
    RETURN FOUND;
END
$$;

-- Since version 4. For a process that cannot reach Kubernetes and therefore cannot take the Lease. Becomes leader and returns
-- its number if the leader has sent no heartbeat for `silence`, or has never sent one and Kubernetes has been `away` for that
-- long; otherwise returns NULL. The holder of the Lease becomes leader again with `lead`, regardless of heartbeats. If no
-- process has ever led, there is nothing to maintain.
CREATE OR REPLACE FUNCTION pgrole.lead_while_away(
    of_installation text, new_holder text, away interval, silence interval DEFAULT '15 s'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    leader record;
BEGIN
    PERFORM pgrole.lock_changes();
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
