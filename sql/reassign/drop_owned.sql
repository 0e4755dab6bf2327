-- Revokes the role's privileges in this database, and drops no object. Setting of the session: pgrole.role, its oid.
-- DROP OWNED also drops the objects that the role owns, and a session can create objects as the role until the last moment.
-- A dropped object no longer exists, but this transaction still holds its lock: if there is one, this fails with PGR03, and
-- nothing is changed. Only parts of the role's privileges may be dropped: policies for this role alone, default privileges,
-- user mappings, and memberships that it granted.
-- A superuser locks the role's name first; other roles resolve it again at the end.
DO $drop_owned$
DECLARE
    role_oid CONSTANT oid := current_setting('pgrole.role')::oid;
    role_name name;
BEGIN
    IF has_table_privilege('pg_catalog.pg_authid', 'UPDATE') THEN
        PERFORM FROM pg_catalog.pg_authid AS a WHERE a.oid = role_oid FOR KEY SHARE;
    END IF;
    SELECT r.rolname INTO role_name FROM pg_catalog.pg_roles AS r WHERE r.oid = role_oid;
    IF role_name IS NULL THEN
        RAISE EXCEPTION 'the role was dropped' USING ERRCODE = 'PGR01';
    END IF;
    EXECUTE format('DROP OWNED BY %I', role_name);
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = role_oid AND r.rolname = role_name) THEN
        RAISE EXCEPTION 'the role was renamed in the meantime' USING ERRCODE = 'PGR03';
    END IF;
    IF EXISTS (
        SELECT
        FROM pg_catalog.pg_locks AS l
        -- not by its type, which PostgreSQL also reports for dropped objects
        CROSS JOIN LATERAL pg_catalog.pg_identify_object(l.classid, l.objid, 0) AS o
        WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock' AND l.locktype = 'object'
          AND l.classid NOT IN (
              'pg_catalog.pg_policy'::regclass, 'pg_catalog.pg_default_acl'::regclass,
              'pg_catalog.pg_user_mapping'::regclass, 'pg_catalog.pg_auth_members'::regclass
          )
          AND o.identity IS NULL
        UNION ALL
        SELECT
        FROM pg_catalog.pg_locks AS l
        WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = l.relation)
    ) THEN
        RAISE EXCEPTION 'objects created as the role in the meantime would be dropped' USING ERRCODE = 'PGR03';
    END IF;
END
$drop_owned$
