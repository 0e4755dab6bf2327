-- For the rest of the transaction that installs: names mean PostgreSQL's own.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Schema pgrole. Whoever made it first stays its owner through every CREATE OR REPLACE, and what is in it is called by
-- a superuser: so nothing is installed into a schema that belongs to somebody else.
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
    -- who installs at the same time waits here: its lock is the owner's alone
    COMMENT ON SCHEMA pgrole IS 'Roles of this server as observed and claimed by pgrole-controller';
    SELECT pg_get_userbyid(n.nspowner) INTO maker FROM pg_namespace AS n WHERE n.nspname = 'pgrole';
    IF NOT EXISTS (
        SELECT FROM pg_roles AS r
        WHERE r.rolname = maker
          AND (r.rolsuper OR r.rolname = current_user)
    ) THEN
        -- another database may have written the name in its encoding
        RAISE EXCEPTION 'schema pgrole belongs to "%"', encode(textsend(maker::text), 'escape') USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

REVOKE ALL ON SCHEMA pgrole FROM PUBLIC;

-- One row: what is installed. `parts` counts what the schema holds, so that a part that went missing is noticed.
CREATE TABLE IF NOT EXISTS pgrole.installation (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version   integer NOT NULL,
    parts     integer NOT NULL
);

-- To be locked, by those who take turns: an advisory lock may be taken by any role that can connect, and held for as long
-- as it likes. Views, since VACUUM and ANALYZE lock tables.
CREATE OR REPLACE VIEW pgrole.turn_to_change AS SELECT true AS turn;
CREATE OR REPLACE VIEW pgrole.turn_to_look AS SELECT true AS turn;
