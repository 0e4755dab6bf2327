-- For the rest of the installing transaction, unqualified names refer to PostgreSQL's own objects.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Schema pgrole. Its creator remains the owner through every CREATE OR REPLACE, and a superuser may call its functions.
-- Therefore nothing is installed into a schema that belongs to anyone else.
DO $$
DECLARE
    maker name;
BEGIN
    IF current_user <> session_user AND EXISTS (
        SELECT
        FROM pg_db_role_setting AS s
        LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
        LEFT JOIN pg_roles AS r ON r.oid = s.setrole
        WHERE (s.setdatabase = 0 OR d.datname = current_database()) AND (s.setrole = 0 OR r.rolname = session_user)
          AND 'role=' || current_user = ANY (s.setconfig)
    ) THEN
        RAISE EXCEPTION 'a setting of the database or the role makes you act as another role, which would own schema pgrole'
            USING ERRCODE = 'insufficient_privilege', HINT = 'RESET it, or connect with PGOPTIONS=''-c role=none''';
    END IF;
    IF to_regnamespace('pgrole') IS NULL THEN
        CREATE SCHEMA pgrole;
    END IF;
    -- concurrent installations wait here: only the owner can take this lock
    COMMENT ON SCHEMA pgrole IS 'Roles and privileges as observed and claimed by pgrole-controller';
    SELECT pg_get_userbyid(n.nspowner) INTO maker FROM pg_namespace AS n WHERE n.nspname = 'pgrole';
    IF NOT EXISTS (
        SELECT FROM pg_roles AS r
        WHERE r.rolname = maker
          AND (r.rolsuper OR r.rolname = current_user)
    ) THEN
        -- another database may have written the name in its encoding
        RAISE EXCEPTION 'schema pgrole belongs to "%"', encode(textsend(maker::text), 'escape')
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Run this as that role, or, except in the home database, remove the schema first: '
                      || '`pgrole-controller sql --remove`.';
    END IF;
END
$$;

REVOKE ALL ON SCHEMA pgrole FROM PUBLIC;

-- One row: the installed version. `parts` is the number of objects in the schema, to detect missing ones.
CREATE TABLE IF NOT EXISTS pgrole.installation (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version   integer NOT NULL,
    parts     integer NOT NULL
);

-- Locked by sessions that change roles or privileges, or observe. Not advisory locks, which any role that can connect could take
-- and hold. Views, since VACUUM and ANALYZE lock tables. Controllers of 0.2.0 lock turn_to_look by its name.
CREATE OR REPLACE VIEW pgrole.turn_to_change AS SELECT true AS turn;
CREATE OR REPLACE VIEW pgrole.turn_to_look AS SELECT true AS turn;

-- Takes the lock on changes until the transaction ends: concurrent ALTER ROLE on one row fails with "tuple concurrently updated".
CREATE OR REPLACE FUNCTION pgrole.lock_changes() RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    LOCK TABLE pgrole.turn_to_change IN SHARE UPDATE EXCLUSIVE MODE
$$;
