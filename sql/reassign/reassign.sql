-- Hands over what the role owns here, and what the server shares, to the new owner. Settings of the session, the oids of
-- both: pgrole.role, pgrole.new_owner. Names are read and quoted here, since in a database with another encoding the
-- bytes of a role's name cannot be sent.
-- A superuser locks first what the names mean, and whose the objects are: REASSIGN OWNED would take one from whoever was
-- given it while it waited. Else the names are looked up again at the end, and nothing is done when they have changed.
DO $reassign$
DECLARE
    old_oid CONSTANT oid := current_setting('pgrole.role')::oid;
    new_oid CONSTANT oid := current_setting('pgrole.new_owner')::oid;
    old_name name;
    new_name name;
BEGIN
    IF has_table_privilege('pg_catalog.pg_authid', 'UPDATE') THEN
        PERFORM FROM pg_catalog.pg_authid AS a WHERE a.oid IN (old_oid, new_oid) ORDER BY a.oid FOR KEY SHARE;
        PERFORM
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = old_oid AND s.deptype = 'o'
          AND s.dbid IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()))
        FOR UPDATE;
    END IF;
    SELECT r.rolname INTO old_name FROM pg_catalog.pg_roles AS r WHERE r.oid = old_oid;
    SELECT r.rolname INTO new_name FROM pg_catalog.pg_roles AS r WHERE r.oid = new_oid;
    IF old_name IS NULL OR new_name IS NULL THEN
        RAISE EXCEPTION 'one of the two roles was dropped' USING ERRCODE = 'PGR01';
    END IF;
    EXECUTE format('REASSIGN OWNED BY %I TO %I', old_name, new_name);
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = old_oid AND r.rolname = old_name)
        OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = new_oid AND r.rolname = new_name)
    THEN
        RAISE EXCEPTION 'a role was renamed in the meantime' USING ERRCODE = 'PGR03';
    END IF;
END
$reassign$
