-- Does the role that was read under a name still have the same oid? Otherwise this fails with PGR01: nothing is changed, and
-- the controller reads again.
-- Settings of the transaction: pgrole.seen_as, the name; pgrole.seen_oid, empty if the role did not exist.
DO $expect$
BEGIN
    IF (
        SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_setting('pgrole.seen_as')::name
    ) IS DISTINCT FROM nullif(current_setting('pgrole.seen_oid'), '')::oid THEN
        RAISE EXCEPTION 'role "%" changed since it was read', current_setting('pgrole.seen_as') USING ERRCODE = 'PGR01';
    END IF;
END
$expect$
