-- To whom did these roles grant something on these objects, in each case the role beside the object? One row for each pair, privilege
-- and column; without a column for the whole object. `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] roles, with $2 oid[] catalogs and $3 oid[] objects in parallel
SELECT w.role, w.catalog, w.oid, e.privilege_type AS privilege, textsend(o.column_name::text) AS column_name,
    coalesce(array_agg(textsend(pg_get_userbyid(e.grantee)::text)) FILTER (WHERE e.grantee <> 0), '{}') AS grantees,
    bool_or(e.grantee = 0) AS to_public,
    row_number() OVER (ORDER BY w.role, w.catalog, w.oid, e.privilege_type, o.column_name) AS page_key, 500 + 110 * count(*) AS page_size
FROM unnest($1::oid[], $2::oid[], $3::oid[]) AS w (role, catalog, oid)
CROSS JOIN LATERAL (
    SELECT '' AS column_name, d.datacl AS acl FROM pg_catalog.pg_database AS d
    WHERE w.catalog = 'pg_catalog.pg_database'::regclass AND d.oid = w.oid
    UNION ALL
    SELECT '', n.nspacl FROM pg_catalog.pg_namespace AS n WHERE w.catalog = 'pg_catalog.pg_namespace'::regclass AND n.oid = w.oid
    UNION ALL
    SELECT '', c.relacl FROM pg_catalog.pg_class AS c WHERE w.catalog = 'pg_catalog.pg_class'::regclass AND c.oid = w.oid
    UNION ALL
    SELECT a.attname::text, a.attacl FROM pg_catalog.pg_attribute AS a
    WHERE w.catalog = 'pg_catalog.pg_class'::regclass AND a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT '', p.proacl FROM pg_catalog.pg_proc AS p WHERE w.catalog = 'pg_catalog.pg_proc'::regclass AND p.oid = w.oid
) AS o
CROSS JOIN LATERAL aclexplode(o.acl || '{}'::aclitem[]) AS e -- unpacked once, not for each entry
WHERE o.acl IS NOT NULL AND e.grantor = w.role AND e.grantee <> w.role
GROUP BY w.role, w.catalog, w.oid, e.privilege_type, o.column_name
