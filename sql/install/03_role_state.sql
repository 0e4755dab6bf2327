-- The last observed state of every role. A trigger notifies all listeners of every change of a row.
CREATE TABLE IF NOT EXISTS pgrole.role_state (
    oid    oid PRIMARY KEY,
    name   text COLLATE "C" NOT NULL,
    digest bytea NOT NULL
);

-- The payload for one role; `claim` is the name of its claim if that differs. A name written by a database with another
-- encoding need not be valid UTF-8, and a client that cannot decode a payload stops listening: then the payload means "all".
CREATE OR REPLACE FUNCTION pgrole.message(op text, role oid, called text, was text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claimed text := (
        SELECT c.role_name
        FROM pgrole.claim AS c
        WHERE c.role_oid = role AND c.role_oid <> 0 AND c.released_at IS NULL AND c.role_name <> called
          AND c.system_identifier = (SELECT f.system_identifier FROM pgrole.fingerprint AS f LIMIT 1)
    );
BEGIN
    PERFORM convert_to(concat_ws(' ', called, was, claimed), 'UTF8');
    RETURN json_strip_nulls(json_build_object(
        'op', op, 'oid', role::bigint, 'name', called, 'was', was, 'claim', claimed
    ));
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN '{"op":"many"}';
END
$$;

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
        PERFORM pg_notify('pgrole', pgrole.message('insert', c.oid, c.name, NULL)) FROM come AS c;
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM pg_notify('pgrole', pgrole.message('delete', g.oid, g.name, NULL)) FROM gone AS g;
    ELSE
        PERFORM pg_notify('pgrole', pgrole.message('update', c.oid, c.name, nullif(g.name, c.name)))
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
-- also where session_replication_role is replica
ALTER TABLE pgrole.role_state
    ENABLE ALWAYS TRIGGER announce_insert,
    ENABLE ALWAYS TRIGGER announce_update,
    ENABLE ALWAYS TRIGGER announce_delete;

-- Password verifiers if the caller can read them, otherwise none.
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

-- Hash of a short text, as bytes: a text of another database need not be valid in this one's encoding.
-- No SET clause, which would prevent inlining; names in a standard SQL body are resolved when the function is created.
CREATE OR REPLACE FUNCTION pgrole.hash_text(content text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN encode(sha256(decode(replace(content, E'\\', E'\\\\'), 'escape')), 'hex');

-- Name and digest of the existing roles. The digest covers everything that a PgRole can declare.
-- Any role that can log in can store values of hundreds of megabytes, which PostgreSQL compresses to little, and settings in each
-- database. They are not read: settings that are compressed or long, and long comments, are represented by the version of their
-- row, a long verifier by its length. pg_column_size, pg_column_compression and octet_length decompress nothing.
-- Equal for equal content on one server, regardless of session settings, if it is short. Nested loops would make a pass over all
-- roles quadratic, since the plan is made for few roles. Fails if a role cannot be digested.
CREATE OR REPLACE FUNCTION pgrole.digest_all(roles oid[]) RETURNS TABLE (oid oid, name text, digest bytea)
LANGUAGE plpgsql VOLATILE ROWS 1
SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        r.oid,
        r.rolname::text,
        sha256(decode(replace(ROW(
            r.rolname, r.rolcanlogin, r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolinherit, r.rolreplication,
            r.rolbypassrls, r.rolconnlimit, extract(epoch FROM nullif(r.rolvaliduntil, 'infinity')),
            CASE WHEN octet_length(v.verifier) > 4096 THEN octet_length(v.verifier)::text ELSE pgrole.hash_text(v.verifier) END,
            m.held, s.settings,
            CASE WHEN octet_length(d.description) > 8192 THEN format('%s %s', octet_length(d.description), d.xmin)
                 ELSE pgrole.hash_text(d.description)
            END
        )::text, E'\\', E'\\\\'), 'escape'))
    FROM pg_roles AS r
    LEFT JOIN pgrole.read_verifiers(roles) AS v ON v.role = r.oid
    LEFT JOIN (
        -- to_jsonb: PostgreSQL 16 has options that 15 does not have
        SELECT h.member, jsonb_agg(DISTINCT to_jsonb(h) - '{oid,member,grantor}'::text[]) AS held
        FROM pg_auth_members AS h
        WHERE h.member = ANY (roles)
        GROUP BY h.member
    ) AS m ON m.member = r.oid
    LEFT JOIN (
        SELECT i.setrole, array_agg(i.hash ORDER BY i.hash COLLATE "C") AS settings
        FROM (
            SELECT g.setrole, format('%s %s', g.setdatabase, pgrole.hash_text(c.item)) AS hash
            FROM pg_db_role_setting AS g
            CROSS JOIN LATERAL unnest(
                CASE WHEN pg_column_compression(g.setconfig) IS NULL AND pg_column_size(g.setconfig) <= 16384 THEN g.setconfig
                     ELSE ARRAY[format('%s %s', pg_column_size(g.setconfig), g.xmin)]
                END
            ) AS c (item)
            WHERE g.setrole = ANY (roles)
        ) AS i
        GROUP BY i.setrole
    ) AS s ON s.setrole = r.oid
    LEFT JOIN pg_shdescription AS d ON d.classoid = 'pg_authid'::regclass AND d.objoid = r.oid AND d.objoid = ANY (roles)
    WHERE r.oid = ANY (roles);
END
$$;

-- The same, except that a role that cannot be digested gets a fixed digest and does not affect the others.
CREATE OR REPLACE FUNCTION pgrole.digest(roles oid[]) RETURNS TABLE (oid oid, name text, digest bytea)
LANGUAGE plpgsql VOLATILE ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    half CONSTANT integer := cardinality(roles) / 2;
BEGIN
    RETURN QUERY SELECT d.oid, d.name, d.digest FROM pgrole.digest_all(roles) AS d;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR out_of_memory OR internal_error THEN
    IF half = 0 THEN
        RETURN QUERY SELECT r.oid, r.rolname::text, 'undigested'::bytea FROM pg_roles AS r WHERE r.oid = ANY (roles);
    ELSE
        RETURN QUERY SELECT d.oid, d.name, d.digest FROM pgrole.digest(roles[:half]) AS d;
        RETURN QUERY SELECT d.oid, d.name, d.digest FROM pgrole.digest(roles[half + 1:]) AS d;
    END IF;
END
$$;

-- Updates the rows of these roles and announces those that differ and those in `touched`. A role that was changed, restored
-- and changed again between two observations has its earlier digest, and whoever restored it must be notified.
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
