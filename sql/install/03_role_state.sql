-- What was last seen of every role. Whoever changes a row, the trigger tells it to all who listen.
CREATE TABLE IF NOT EXISTS pgrole.role_state (
    oid    oid PRIMARY KEY,
    name   text COLLATE "C" NOT NULL,
    digest bytea NOT NULL
);

CREATE OR REPLACE FUNCTION pgrole.announce() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    many CONSTANT integer := 100;
    touched integer;
BEGIN
    IF TG_OP = 'DELETE' THEN
        SELECT count(*) INTO touched FROM gone;
    ELSE
        SELECT count(*) INTO touched FROM come;
    END IF;
    IF touched > many THEN
        PERFORM pg_notify('pgrole', '{"op":"many"}');
    ELSIF touched = 0 THEN
        NULL;
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM pg_notify('pgrole', json_build_object('op', 'insert', 'oid', c.oid::bigint, 'name', c.name)::text)
        FROM come AS c;
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM pg_notify('pgrole', json_build_object('op', 'delete', 'oid', g.oid::bigint, 'name', g.name)::text)
        FROM gone AS g;
    ELSE
        PERFORM pg_notify('pgrole', json_strip_nulls(json_build_object(
            'op', 'update', 'oid', c.oid::bigint, 'name', c.name, 'was', nullif(g.name, c.name)
        ))::text)
        FROM come AS c JOIN gone AS g USING (oid);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER announce_insert AFTER INSERT ON pgrole.role_state
    REFERENCING NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce();
CREATE OR REPLACE TRIGGER announce_update AFTER UPDATE ON pgrole.role_state
    REFERENCING OLD TABLE AS gone NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce();
CREATE OR REPLACE TRIGGER announce_delete AFTER DELETE ON pgrole.role_state
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce();

-- Where the verifiers of passwords may be read; elsewhere none.
CREATE OR REPLACE FUNCTION pgrole.read_verifiers(roles oid[]) RETURNS TABLE (role oid, verifier text)
LANGUAGE plpgsql STABLE ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'select') THEN
        RETURN QUERY SELECT a.oid, a.rolpassword FROM pg_authid AS a WHERE a.oid = ANY (roles);
    END IF;
END
$$;

-- Name and digest of those roles that are there; the digest covers everything that a PgRole can declare.
-- The same for the same content on one server, whatever the session's settings. Nested loops would make a pass over all
-- roles quadratic, since a plan is made for few.
CREATE OR REPLACE FUNCTION pgrole.digest(roles oid[]) RETURNS TABLE (oid oid, name text, digest bytea)
LANGUAGE plpgsql VOLATILE ROWS 1
SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        r.oid,
        r.rolname::text,
        -- the bytes as they are: a name that another database wrote need not be valid in this one's encoding
        sha256(decode(replace(ROW(
            r.rolname, r.rolcanlogin, r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolinherit, r.rolreplication,
            r.rolbypassrls, r.rolconnlimit, extract(epoch FROM nullif(r.rolvaliduntil, 'infinity')),
            v.verifier, m.held, s.settings, d.description
        )::text, E'\\', E'\\\\'), 'escape'))
    FROM pg_roles AS r
    LEFT JOIN pgrole.read_verifiers(roles) AS v ON v.role = r.oid
    LEFT JOIN (
        -- to_jsonb: PostgreSQL 16 has options that 15 does not know
        SELECT h.member, jsonb_agg(DISTINCT to_jsonb(h) - '{oid,member,grantor}'::text[]) AS held
        FROM pg_auth_members AS h
        WHERE h.member = ANY (roles)
        GROUP BY h.member
    ) AS m ON m.member = r.oid
    LEFT JOIN (
        SELECT g.setrole, array_agg(format('%s %s', g.setdatabase, c.item) ORDER BY g.setdatabase, c.item COLLATE "C") AS settings
        FROM pg_db_role_setting AS g, unnest(g.setconfig) AS c (item)
        WHERE g.setrole = ANY (roles)
        GROUP BY g.setrole
    ) AS s ON s.setrole = r.oid
    LEFT JOIN pg_shdescription AS d ON d.classoid = 'pg_authid'::regclass AND d.objoid = r.oid AND d.objoid = ANY (roles)
    WHERE r.oid = ANY (roles);
END
$$;

-- Brings the rows of these roles up to date, and announces those that differ and those that were `touched`: one that was
-- changed, set back and changed to the same again between two looks has the digest that it had, and somebody who set it
-- back meanwhile must hear of it.
CREATE OR REPLACE FUNCTION pgrole.record(roles oid[], touched oid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH there AS MATERIALIZED (
        SELECT n.oid, n.name, n.digest FROM pgrole.digest(roles) AS n
    ),
    dropped AS (
        DELETE FROM pgrole.role_state AS s
        WHERE s.oid = ANY (roles) AND s.oid NOT IN (SELECT t.oid FROM there AS t)
    )
    INSERT INTO pgrole.role_state AS s (oid, name, digest)
    SELECT t.oid, t.name, t.digest
    FROM there AS t
    LEFT JOIN pgrole.role_state AS k ON k.oid = t.oid
    LEFT JOIN (SELECT DISTINCT u.oid FROM unnest(touched) AS u (oid)) AS u ON u.oid = t.oid
    WHERE u.oid IS NOT NULL OR (k.name, k.digest) IS DISTINCT FROM (t.name, t.digest)
    ON CONFLICT (oid) DO UPDATE SET name = excluded.name, digest = excluded.digest;
END
$$;
