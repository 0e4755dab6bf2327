-- Which default privileges do the grantees have? One row for each creator, schema and type of object, with at most 10,000 entries:
-- postgres/privileges/acl_entries.py. Rows whose schema is gone are left out: nothing can change them, and nothing is created there.
-- `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] grantees   $2 bytea[] names of schemas, empty for none; NULL: all
SELECT
    d.defaclrole AS creator, textsend(pg_get_userbyid(d.defaclrole)::text) AS creator_name,
    textsend(coalesce(n.nspname::text, '')) AS schema, d.defaclobjtype::text AS object_type, d.xmin::text::bigint AS version,
    e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable,
    d.oid::bigint AS page_key, 1000 + 110 * cardinality(e.grantees) AS page_size
FROM pg_catalog.pg_default_acl AS d
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = d.defaclnamespace
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable
    FROM (
        SELECT x.*
        FROM aclexplode(d.defaclacl || '{}'::aclitem[]) AS x -- unpacked once, not for each entry
        WHERE x.grantee = ANY ($1::oid[]) AND x.grantee <> d.defaclrole
        LIMIT 10000
    ) AS a
) AS e
WHERE e.grantees IS NOT NULL AND (d.defaclnamespace = 0 OR n.oid IS NOT NULL)
  AND ($2::bytea[] IS NULL OR textsend(coalesce(n.nspname::text, '')) IN (SELECT unnest($2::bytea[])))
