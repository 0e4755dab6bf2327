-- Hands over what the role owns here, and what the server shares, to the new owner. Settings of the session, the oids of
-- both: pgrole.role, pgrole.new_owner. Names are read and quoted here, since in a database with another encoding the
-- bytes of a role's name cannot be sent.
DO $reassign$
DECLARE
    old_name CONSTANT name := (
        SELECT r.rolname FROM pg_catalog.pg_roles AS r WHERE r.oid = current_setting('pgrole.role')::oid
    );
    new_name CONSTANT name := (
        SELECT r.rolname FROM pg_catalog.pg_roles AS r WHERE r.oid = current_setting('pgrole.new_owner')::oid
    );
BEGIN
    IF old_name IS NULL OR new_name IS NULL THEN
        RAISE EXCEPTION 'one of the two roles was dropped' USING ERRCODE = 'PGR01';
    END IF;
    EXECUTE format('REASSIGN OWNED BY %I TO %I', old_name, new_name);
END
$reassign$
