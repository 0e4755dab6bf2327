-- Did the previous statements change the intended roles? The last statement of a transaction that changes roles: roles that can
-- rename roles do not take the controller's lock. Fails with PGR01: nothing is changed, and the controller reads again.
-- Settings of the transaction: pgrole.names, and pgrole.oids that they must have; pgrole.dropped, the oids of dropped roles:
-- DROP ROLE holds its lock until the transaction ends.
DO $named$
DECLARE
    names   CONSTANT name[] := current_setting('pgrole.names')::name[];
    oids    CONSTANT oid[]  := current_setting('pgrole.oids')::oid[];
    dropped CONSTANT oid[]  := current_setting('pgrole.dropped')::oid[];
BEGIN
    IF EXISTS (
        SELECT
        FROM unnest(names, oids) AS a (name, oid)
        LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = a.name
        WHERE r.oid IS DISTINCT FROM a.oid
    ) OR cardinality(dropped) > 0 AND (
        SELECT array_agg(l.objid ORDER BY l.objid)
        FROM pg_catalog.pg_locks AS l
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'object' AND l.database = 0
          AND l.classid = 'pg_catalog.pg_authid'::regclass AND l.mode = 'AccessExclusiveLock'
    ) IS DISTINCT FROM (SELECT array_agg(d.oid ORDER BY d.oid) FROM unnest(dropped) AS d (oid)) THEN
        RAISE EXCEPTION 'a role was renamed while it was changed' USING ERRCODE = 'PGR01';
    END IF;
END
$named$
