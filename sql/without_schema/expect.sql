-- The role that was seen under a name still has that oid. Fails with PGR01: nothing is changed, it is looked at again.
-- Settings of the transaction: pgrole.seen_as, the name; pgrole.seen_oid, empty where there was none.
DO $expect$
BEGIN
    IF (
        SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_setting('pgrole.seen_as')::name
    ) IS DISTINCT FROM nullif(current_setting('pgrole.seen_oid'), '')::oid THEN
        RAISE EXCEPTION 'role "%" changed since it was read', current_setting('pgrole.seen_as') USING ERRCODE = 'PGR01';
    END IF;
END
$expect$
