-- What is there for each of the asked objects? One row each, in their order.
-- $1 name[] role names ('' where the object is gone)   $2 text[] namespaces   $3 text[] objects   $4 text cluster
WITH RECURSIVE asked AS (
    SELECT * FROM unnest($1::name[], $2::text[], $3::text[]) WITH ORDINALITY AS a (role_name, namespace, object, place)
),
role AS (
    SELECT oid, rolname, rolcanlogin, rolsuper, rolcreatedb, rolcreaterole, rolinherit, rolreplication, rolbypassrls,
           rolconnlimit, rolvaliduntil
    FROM pg_catalog.pg_roles
)
SELECT
    n.oid AS named_oid, n.rolname AS named_name, n.rolcanlogin AS named_login, n.rolsuper AS named_superuser,
    n.rolcreatedb AS named_createdb, n.rolcreaterole AS named_createrole, n.rolinherit AS named_inherit,
    n.rolreplication AS named_replication, n.rolbypassrls AS named_bypassrls, n.rolconnlimit AS named_connection_limit,
    CASE WHEN n.rolvaliduntil = '-infinity' THEN -9223372036854775808
         WHEN n.rolvaliduntil < 'infinity' THEN least(extract(epoch FROM n.rolvaliduntil) * 1000000, 9223372036854775807)::bigint
    END AS named_valid_until,
    pg_catalog.shobj_description(n.oid, 'pg_authid') AS named_comment,
    -- only where it is not known as ours: adoption must not take over what reaches further than an object may ask for
    CASE WHEN c.role_oid IS DISTINCT FROM n.oid OR c.released_at IS NOT NULL THEN ARRAY(
        WITH RECURSIVE reached AS (
            SELECT roleid FROM pg_catalog.pg_auth_members WHERE member = n.oid
            UNION
            SELECT m.roleid FROM reached AS r JOIN pg_catalog.pg_auth_members AS m ON m.member = r.roleid
        )
        SELECT x.rolname::text
        FROM reached AS r JOIN role AS x ON x.oid = r.roleid
        WHERE x.rolsuper
           OR x.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
           OR x.rolname IN (current_user, session_user)
        ORDER BY 1
    ) END AS named_reaches,
    o.oid AS claimed_oid, o.rolname AS claimed_name, o.rolcanlogin AS claimed_login, o.rolsuper AS claimed_superuser,
    o.rolcreatedb AS claimed_createdb, o.rolcreaterole AS claimed_createrole, o.rolinherit AS claimed_inherit,
    o.rolreplication AS claimed_replication, o.rolbypassrls AS claimed_bypassrls,
    o.rolconnlimit AS claimed_connection_limit,
    CASE WHEN o.rolvaliduntil = '-infinity' THEN -9223372036854775808
         WHEN o.rolvaliduntil < 'infinity' THEN least(extract(epoch FROM o.rolvaliduntil) * 1000000, 9223372036854775807)::bigint
    END AS claimed_valid_until,
    pg_catalog.shobj_description(o.oid, 'pg_authid') AS claimed_comment,
    c.role_name AS claim_role_name, c.role_oid AS claim_role_oid, c.system_identifier AS claim_system_identifier,
    c.cluster AS claim_cluster, c.namespace AS claim_namespace, c.namespace_uid AS claim_namespace_uid,
    c.object AS claim_object, c.object_uid AS claim_object_uid, c.applied AS claim_applied,
    c.drift_count AS claim_drift_count, c.last_drift_at AS claim_last_drift_at,
    c.last_drift_fields AS claim_last_drift_fields, c.released_at IS NOT NULL AS claim_released,
    ARRAY(
        SELECT ARRAY[f.role_name, f.object_uid]
        FROM pgrole.claim AS f
        WHERE f.cluster = $4 AND f.namespace = a.namespace AND f.object = a.object
          AND f.role_name <> a.role_name::text AND f.released_at IS NULL
    ) AS former
FROM asked AS a
LEFT JOIN role AS n ON n.rolname = a.role_name
LEFT JOIN pgrole.claim AS c ON c.role_name = a.role_name::text
LEFT JOIN role AS o ON o.oid = c.role_oid AND o.oid IS DISTINCT FROM n.oid
ORDER BY a.place
