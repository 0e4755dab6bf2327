-- Reassigns what the role owns in this database, and the shared objects that it owns, to the new owner.
-- Settings of the session, both oids: pgrole.role, pgrole.new_owner. Names are read and quoted here, since the bytes of a
-- role's name cannot be sent to a database with another encoding.
-- A superuser first locks the names, and the ownership of the objects: otherwise REASSIGN OWNED could take an object from a
-- role that received it while REASSIGN OWNED waited. Other roles resolve the names again at the end; if they have changed,
-- this fails with PGR03, and nothing is changed.
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
