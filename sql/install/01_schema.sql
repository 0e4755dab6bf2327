-- For the rest of the transaction that installs: names mean PostgreSQL's own.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Schema pgrole. Whoever made it first stays its owner through every CREATE OR REPLACE, and what is in it is called by
-- a superuser: so nothing is installed into a schema that belongs to somebody else.
DO $$
DECLARE
    maker text := (
        SELECT pg_get_userbyid(n.nspowner)
        FROM pg_namespace AS n
        WHERE n.nspname = 'pgrole'
    );
BEGIN
    IF maker IS NULL THEN
        CREATE SCHEMA pgrole;
    ELSIF NOT EXISTS (
        SELECT FROM pg_roles AS r
        WHERE r.rolname = maker
          AND (r.rolsuper OR r.rolname = current_user)
    ) THEN
        RAISE EXCEPTION 'schema pgrole belongs to "%"', maker USING ERRCODE = 'insufficient_privilege';
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
