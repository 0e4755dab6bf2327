-- Were the roles meant that the statements before this one named? The last statement of a transaction that changes roles:
-- whoever may rename roles takes no turn. Fails with PGR01: nothing is changed, it is looked at again.
-- Settings of the transaction: pgrole.names, and pgrole.oids, which these must have; pgrole.dropped, the oids of what was
-- dropped: DROP ROLE keeps its lock on what it dropped.
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
