-- Detects which roles changed, by identity and xmin of the catalog rows.
--
-- A row version that a snapshot does not see was written by a transaction whose id is not below that snapshot's xmin.
-- If all rows of a catalog were read at a snapshot, the catalog is unchanged as long as the number of rows is the same and
-- the rows with an xmin from there on ("recent": few, mostly none) are the same. Only these need a hash or can be new.

-- Every row of the four role catalogs: the role it concerns (0: none), its other identity, and its version.
CREATE OR REPLACE VIEW pgrole.catalog_row (catalog, role, other, grantor, version) AS
SELECT 'pg_authid'::regclass::oid, a.oid, 0::oid, 0::oid, a.xmin
FROM pg_authid AS a
UNION ALL
SELECT 'pg_auth_members'::regclass::oid, m.member, m.roleid, m.grantor, m.xmin
FROM pg_auth_members AS m
UNION ALL
SELECT 'pg_db_role_setting'::regclass::oid, s.setrole, s.setdatabase, 0::oid, s.xmin
FROM pg_db_role_setting AS s
UNION ALL
SELECT
    'pg_shdescription'::regclass::oid,
    CASE WHEN d.classoid = 'pg_authid'::regclass THEN d.objoid ELSE 0::oid END,
    CASE WHEN d.classoid = 'pg_authid'::regclass THEN 0::oid ELSE d.objoid END,
    CASE WHEN d.classoid = 'pg_authid'::regclass THEN 0::oid ELSE d.classoid END,
    d.xmin
FROM pg_shdescription AS d;

-- The rows as last observed. Version 0: written by a transaction that had not ended at that time.
CREATE TABLE IF NOT EXISTS pgrole.seen (
    catalog oid NOT NULL,
    role    oid NOT NULL,
    other   oid NOT NULL,
    grantor oid NOT NULL,
    version xid NOT NULL,
    PRIMARY KEY (catalog, role, other, grantor)
);

-- For each catalog: it was read completely at a snapshot with xmin `since`, its number of rows at that time, and the XOR of
-- the hashes of the rows from `since` on. Rows -1: to be read again.
CREATE TABLE IF NOT EXISTS pgrole.fingerprint (
    catalog           oid PRIMARY KEY,
    system_identifier bigint NOT NULL,
    since             xid8 NOT NULL,
    rows              bigint NOT NULL,
    recent            bigint NOT NULL
);

-- The current fingerprint. One sequential scan of each catalog, with few matching rows: an aggregate over all rows costs twice
-- as much, and a scan of catalog_row half as much again. Rows are counted only if a query uses that column.
CREATE OR REPLACE VIEW pgrole.fingerprint_now (catalog, rows, recent) AS
SELECT
    r.catalog,
    CASE r.catalog
        WHEN 'pg_authid'::regclass THEN (SELECT count(*) FROM pg_authid)
        WHEN 'pg_auth_members'::regclass THEN (SELECT count(*) FROM pg_auth_members)
        WHEN 'pg_db_role_setting'::regclass THEN (SELECT count(*) FROM pg_db_role_setting)
        WHEN 'pg_shdescription'::regclass THEN (SELECT count(*) FROM pg_shdescription)
    END,
    r.recent
FROM (
    WITH span AS MATERIALIZED (
        SELECT f.catalog, age(f.since::xid) AS span FROM pgrole.fingerprint AS f
    )
    SELECT
        'pg_authid'::regclass::oid,
        coalesce(bit_xor(hash_record_extended(ROW(a.oid, 0::oid, 0::oid, a.xmin), 0)), 0)
    FROM pg_authid AS a
    WHERE age(a.xmin) <= (SELECT s.span FROM span AS s WHERE s.catalog = 'pg_authid'::regclass)
    UNION ALL
    SELECT
        'pg_auth_members'::regclass::oid,
        coalesce(bit_xor(hash_record_extended(ROW(m.member, m.roleid, m.grantor, m.xmin), 0)), 0)
    FROM pg_auth_members AS m
    WHERE age(m.xmin) <= (SELECT s.span FROM span AS s WHERE s.catalog = 'pg_auth_members'::regclass)
    UNION ALL
    SELECT
        'pg_db_role_setting'::regclass::oid,
        coalesce(bit_xor(hash_record_extended(ROW(g.setrole, g.setdatabase, 0::oid, g.xmin), 0)), 0)
    FROM pg_db_role_setting AS g
    WHERE age(g.xmin) <= (SELECT s.span FROM span AS s WHERE s.catalog = 'pg_db_role_setting'::regclass)
    UNION ALL
    SELECT
        'pg_shdescription'::regclass::oid,
        coalesce(bit_xor(hash_record_extended(ROW(
            CASE WHEN d.classoid = 'pg_authid'::regclass THEN d.objoid ELSE 0::oid END,
            CASE WHEN d.classoid = 'pg_authid'::regclass THEN 0::oid ELSE d.objoid END,
            CASE WHEN d.classoid = 'pg_authid'::regclass THEN 0::oid ELSE d.classoid END,
            d.xmin
        ), 0)), 0)
    FROM pg_shdescription AS d
    WHERE age(d.xmin) <= (SELECT s.span FROM span AS s WHERE s.catalog = 'pg_shdescription'::regclass)
) AS r (catalog, recent);

-- The text of the next snapshot if only the calling transaction commits: `seen` with `own` added. Transactions below `own` that
-- have not ended are still running then.
CREATE OR REPLACE FUNCTION pgrole.expect_snapshot(seen pg_snapshot, own xid8) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last    CONSTANT bigint := own::text::bigint;
    started CONSTANT bigint := pg_snapshot_xmax(seen)::text::bigint;
    running bigint[];
BEGIN
    IF last NOT BETWEEN started AND started + 100 THEN
        RETURN seen::text;
    END IF;
    running := ARRAY(
        SELECT x::text::bigint FROM pg_snapshot_xip(seen) AS x
        UNION ALL
        SELECT x FROM generate_series(started, last - 1) AS x
        ORDER BY 1
    );
    RETURN format('%s:%s:%s', coalesce(running[1], last + 1), last + 1, array_to_string(running, ','));
END
$$;

-- Compares the rows of these catalogs, all at one snapshot, with those last observed, and stores them. `counted`: number of rows
-- of each catalog at snapshot `counted_at`. `own`: the caller's transaction id if it had one before, whose rows may still change.
-- Returns the roles of the rows that differ, and the snapshot.
CREATE OR REPLACE FUNCTION pgrole.compare(
    catalogs oid[], counted bigint[], counted_at text, own xid8, OUT roles oid[], OUT seen_at pg_snapshot
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH moved AS MATERIALIZED (
        SELECT
            f.catalog, f.rows AS rows_then, age(f.since::xid) AS span,
            CASE WHEN pg_current_snapshot()::text = counted_at THEN a.rows
                 ELSE (SELECT n.rows FROM pgrole.fingerprint_now AS n WHERE n.catalog = f.catalog)
            END AS rows_now
        FROM unnest(catalogs, counted) AS a (catalog, rows)
        JOIN pgrole.fingerprint AS f ON f.catalog = a.catalog
    ),
    recent AS MATERIALIZED (
        SELECT c.catalog, c.role, c.other, c.grantor, c.version
        FROM pgrole.catalog_row AS c
        WHERE c.catalog = ANY (catalogs) AND age(c.version) <= (SELECT max(m.span) FROM moved AS m)
    ),
    -- one by one through the index, since they are few
    compared AS MATERIALIZED (
        SELECT r.catalog, r.role, r.other, r.grantor, r.version, (
            SELECT s.version
            FROM pgrole.seen AS s
            WHERE (s.catalog, s.role, s.other, s.grantor) = (r.catalog, r.role, r.other, r.grantor)
        ) AS known
        FROM recent AS r
    ),
    fresh AS MATERIALIZED (
        SELECT r.catalog, r.role, r.other, r.grantor, r.version, r.known IS NULL AS added
        FROM compared AS r
        WHERE r.known IS DISTINCT FROM r.version
    ),
    shrunk AS MATERIALIZED (
        SELECT m.catalog
        FROM moved AS m
        WHERE m.rows_then + (SELECT count(*) FROM fresh AS n WHERE n.catalog = m.catalog AND n.added) <> m.rows_now
    ),
    gone AS MATERIALIZED (
        SELECT s.ctid AS place, s.role
        FROM pgrole.seen AS s
        WHERE s.catalog = ANY (ARRAY(SELECT k.catalog FROM shrunk AS k))
          AND NOT EXISTS (
              SELECT
              FROM pgrole.catalog_row AS c
              WHERE c.catalog = ANY (ARRAY(SELECT k.catalog FROM shrunk AS k))
                AND c.role = s.role AND c.other = s.other
                -- not hashed: two columns distinguish almost all rows, and four cost half as much again
                AND (c.catalog, c.grantor) IS NOT DISTINCT FROM (s.catalog, s.grantor)
          )
    ),
    forgotten AS (
        DELETE FROM pgrole.seen AS s
        WHERE s.ctid = ANY (ARRAY(SELECT g.place FROM gone AS g))
    ),
    kept AS (
        INSERT INTO pgrole.seen AS s (catalog, role, other, grantor, version)
        SELECT
            n.catalog, n.role, n.other, n.grantor,
            CASE WHEN age(n.version) <= age(own::xid) THEN '0'::xid ELSE n.version END
        FROM fresh AS n
        ON CONFLICT (catalog, role, other, grantor) DO UPDATE SET version = excluded.version
    ),
    reckoned AS (
        UPDATE pgrole.fingerprint AS f
        SET since = pg_snapshot_xmin(pg_current_snapshot()),
            rows = CASE WHEN own IS NULL THEN m.rows_now ELSE -1 END,
            recent = coalesce((
                SELECT bit_xor(hash_record_extended(ROW(r.role, r.other, r.grantor, r.version), 0))
                FROM recent AS r
                WHERE r.catalog = m.catalog AND age(r.version) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid)
            ), 0)
        FROM moved AS m
        WHERE f.catalog = m.catalog
    )
    SELECT
        ARRAY(SELECT n.role FROM fresh AS n WHERE n.role <> 0 UNION SELECT g.role FROM gone AS g WHERE g.role <> 0),
        pg_current_snapshot()
    INTO roles, seen_at;
END
$$;

-- Discards all observations.
CREATE OR REPLACE FUNCTION pgrole.forget() RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO pgrole.fingerprint AS f (catalog, system_identifier, since, rows, recent)
    SELECT n.catalog, c.system_identifier, '0'::xid8, -1, 0
    FROM pgrole.fingerprint_now AS n, pg_control_system() AS c
    ON CONFLICT (catalog) DO UPDATE SET
        system_identifier = excluded.system_identifier,
        since = excluded.since,
        rows = excluded.rows,
        recent = excluded.recent
$$;

-- Takes the lock on observing until the transaction ends. Returns false if another session holds it. Assigns no transaction id.
-- A watch that began with version 3 still calls it by this name.
CREATE OR REPLACE FUNCTION pgrole.try_turn_to_look() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE pgrole.turn_to_look IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Since version 4. The databases as last observed, by version of their rows in pg_database: that is renewed when a database is
-- created, renamed, given to another owner, or changes its ACL. Version 0: written by a transaction that had not ended.
CREATE TABLE IF NOT EXISTS pgrole.database_state (
    oid     oid PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    version xid NOT NULL
);

-- The payload for one database, as `message` is for a role. Under `name`, releases before would take it for a role.
CREATE OR REPLACE FUNCTION pgrole.message_of_database(called text, was text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM convert_to(concat_ws(' ', called, was), 'UTF8');
    RETURN json_strip_nulls(json_build_object('op', 'database', 'database', called, 'database_was', was));
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN '{"op":"databases"}';
END
$$;

-- Updates database_state and notifies listeners of the databases that differ. `own` as in compare. The caller holds the lock on
-- observing.
CREATE OR REPLACE FUNCTION pgrole.record_databases(own xid8) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    many  CONSTANT integer := 100;
    first CONSTANT boolean := NOT EXISTS (SELECT FROM pgrole.database_state);
    called text[];
    were   text[];
BEGIN
    WITH differing AS MATERIALIZED (
        SELECT coalesce(d.oid, s.oid) AS oid, d.datname::text AS name, d.xmin AS version, s.name AS was
        FROM pg_database AS d FULL JOIN pgrole.database_state AS s ON s.oid = d.oid
        WHERE d.oid IS NULL OR s.oid IS NULL OR d.xmin <> s.version
    ),
    dropped AS (
        DELETE FROM pgrole.database_state AS s USING differing AS d WHERE s.oid = d.oid AND d.name IS NULL
    ),
    kept AS (
        INSERT INTO pgrole.database_state AS s (oid, name, version)
        SELECT d.oid, d.name, CASE WHEN age(d.version) <= age(own::xid) THEN '0'::xid ELSE d.version END
        FROM differing AS d
        WHERE d.name IS NOT NULL
        ON CONFLICT (oid) DO UPDATE SET name = excluded.name, version = excluded.version
    )
    SELECT array_agg(coalesce(d.name, d.was)), array_agg(CASE WHEN d.was <> d.name THEN d.was END)
    INTO called, were
    FROM differing AS d;
    IF first OR cardinality(called) > many THEN
        PERFORM pg_notify('pgrole', '{"op":"databases"}');
    ELSE
        PERFORM pg_notify('pgrole', pgrole.message_of_database(n.called, n.was)) FROM unnest(called, were) AS n (called, was);
    END IF;
END
$$;

-- Updates role_state, which notifies listeners of the changed roles, and database_state. Writes nothing if nothing changed.
-- Returns the text of a snapshot up to which everything has been observed: while pg_current_snapshot() equals it, there is
-- nothing new.
-- `everything`: ignores earlier observations.
CREATE OR REPLACE FUNCTION pgrole.observe(everything boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    own      CONSTANT xid8 := pg_current_xact_id_if_assigned();
    catalogs CONSTANT oid[] := ARRAY[
        'pg_authid'::regclass, 'pg_auth_members'::regclass, 'pg_db_role_setting'::regclass, 'pg_shdescription'::regclass
    ];
    tracked  CONSTANT boolean := current_setting('track_counts');
    read     bigint[];
    seen     text;
    moved    oid[];
    counted  bigint[];
    known    boolean;
    lost     boolean;
    databases boolean;
    compared record;
BEGIN
    LOOP
        -- PostgreSQL counts the rows that sequential scans of a transaction read; counting them here would double the cost
        read := ARRAY[
            pg_stat_get_xact_tuples_returned(catalogs[1]), pg_stat_get_xact_tuples_returned(catalogs[2]),
            pg_stat_get_xact_tuples_returned(catalogs[3]), pg_stat_get_xact_tuples_returned(catalogs[4])
        ];
        WITH now AS MATERIALIZED (
            SELECT
                r.catalog,
                CASE WHEN tracked
                     THEN pg_stat_get_xact_tuples_returned(r.catalog) - read[array_position(catalogs, r.catalog)]
                     ELSE (SELECT n.rows FROM pgrole.fingerprint_now AS n WHERE n.catalog = r.catalog)
                END AS rows,
                r.recent
            FROM pgrole.fingerprint_now AS r
        )
        SELECT
            pg_current_snapshot()::text,
            array_agg(n.catalog) FILTER (WHERE (f.rows, f.recent) IS DISTINCT FROM (n.rows, n.recent)),
            array_agg(n.rows) FILTER (WHERE (f.rows, f.recent) IS DISTINCT FROM (n.rows, n.recent)),
            -- ignore rows observed on another server, or so long ago that age() is about to wrap
            bool_and(coalesce(
                f.system_identifier = c.system_identifier
                AND pg_snapshot_xmax(pg_current_snapshot())::text::bigint - f.since::text::bigint BETWEEN 0 AND 1 << 30,
                false
            )),
            NOT (EXISTS (SELECT FROM pgrole.seen) AND EXISTS (SELECT FROM pgrole.role_state)),
            (SELECT coalesce(bit_xor(hash_record_extended(ROW(d.oid, d.xmin), 0)), 0) FROM pg_database AS d)
                <> (SELECT coalesce(bit_xor(hash_record_extended(ROW(s.oid, s.version), 0)), 0) FROM pgrole.database_state AS s)
        INTO seen, moved, counted, known, lost, databases
        FROM pg_control_system() AS c, now AS n
        LEFT JOIN pgrole.fingerprint AS f ON f.catalog = n.catalog;

        lost := known AND lost;
        known := known AND NOT lost;
        IF known AND moved IS NULL AND NOT databases AND NOT everything THEN
            RETURN seen;
        END IF;
        EXIT WHEN pgrole.try_turn_to_look();
        -- another session is observing: no need to repeat its work
        LOCK TABLE pgrole.turn_to_look IN SHARE UPDATE EXCLUSIVE MODE;
    END LOOP;

    IF databases THEN
        PERFORM pgrole.record_databases(own);
    END IF;
    -- whoever emptied the tables took the names of roles that were dropped since
    IF lost THEN
        PERFORM pg_notify('pgrole', '{"op":"many"}');
    END IF;
    IF everything OR NOT known THEN
        PERFORM pgrole.forget();
        SELECT array_agg(f.catalog), array_agg(-1::bigint) INTO moved, counted FROM pgrole.fingerprint AS f;
        seen := '';
    END IF;
    compared := pgrole.compare(coalesce(moved, '{}'), coalesce(counted, '{}'), seen, own);
    IF everything OR NOT known THEN
        PERFORM pgrole.record(
            ARRAY(SELECT r.oid FROM pg_roles AS r UNION SELECT s.oid FROM pgrole.role_state AS s), compared.roles
        );
        -- the cached plans were made when the table was empty
        ANALYZE pgrole.seen;
    ELSIF cardinality(compared.roles) > 0 THEN
        PERFORM pgrole.record(compared.roles, compared.roles);
    END IF;
    IF seen = '' OR own IS NOT NULL THEN
        RETURN compared.seen_at::text;
    ELSIF compared.seen_at::text <> seen THEN
        -- unchanged catalogs were not read again
        RETURN seen;
    END IF;
    RETURN pgrole.expect_snapshot(compared.seen_at, pg_current_xact_id_if_assigned());
END
$$;

-- Who was granted to observe roles by an administrator, before version 4, may observe databases, too.
DO $$
DECLARE
    other name;
BEGIN
    FOR other IN
        SELECT DISTINCT r.rolname
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE c.oid = 'pgrole.role_state'::regclass AND a.privilege_type = 'UPDATE' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pgrole.database_state TO %I', other);
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION pgrole.record_databases(xid8), pgrole.message_of_database(text, text) TO %I', other
        );
    END LOOP;
END
$$;

-- If a table was lost and is installed again, the next observation reads everything.
DELETE FROM pgrole.fingerprint
WHERE NOT EXISTS (SELECT FROM pgrole.role_state) OR NOT EXISTS (SELECT FROM pgrole.seen);
