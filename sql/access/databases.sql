-- Which databases exist, and with which ACL? `current`: the connection's. `allowed`: it accepts connections.
SELECT
    d.oid, textsend(d.datname::text) AS name, d.datdba AS owner, d.datallowconn AS allowed, d.datistemplate AS template,
    d.datname = current_database() AS current,
    pg_catalog.has_database_privilege(d.oid, 'CONNECT') AS connects,
    a.grantees, a.grantors, a.grantor_names, a.privileges, a.grantable
FROM pg_catalog.pg_database AS d
CROSS JOIN LATERAL (
    SELECT
        array_agg(e.grantee) AS grantees, array_agg(e.grantor) AS grantors,
        array_agg(textsend(pg_catalog.pg_get_userbyid(e.grantor)::text)) AS grantor_names,
        array_agg(e.privilege_type) AS privileges, array_agg(e.is_grantable) AS grantable
    FROM aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) AS e
) AS a
ORDER BY d.datname
