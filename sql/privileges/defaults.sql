-- Which default privileges do the grantees have? One row for each creator, schema and type of object, at most 10,000.
-- $1 oid[] grantees
SELECT
    d.defaclrole AS creator, textsend(pg_get_userbyid(d.defaclrole)::text) AS creator_name,
    textsend(coalesce(n.nspname::text, '')) AS schema, d.defaclobjtype::text AS object_type, d.xmin::text::bigint AS version,
    e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable
FROM pg_catalog.pg_default_acl AS d
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = d.defaclnamespace
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable
    FROM aclexplode(d.defaclacl) AS a
    WHERE a.grantee = ANY ($1::oid[]) AND a.grantee <> d.defaclrole
) AS e
WHERE e.grantees IS NOT NULL
LIMIT 10000
