-- Which privileges do these roles, or every role, hold on columns? One row for each relation and ACL of columns, with the columns that
-- have it, which NUL separates. `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] roles
SELECT
    f.relation, f.columns, e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable,
    (f.relation::bigint << 16) + f.place AS page_key, 700 + 70 * f.count + 110 * cardinality(e.grantees) AS page_size
FROM (
    SELECT
        t.attrelid AS relation, t.attacl AS acl, min(t.attnum) + 100 AS place, count(*) AS count,
        string_agg(textsend(t.attname::text), '\x00'::bytea) AS columns
    FROM pg_catalog.pg_attribute AS t
    WHERE t.attacl IS NOT NULL AND NOT t.attisdropped
    GROUP BY t.attrelid, t.attacl
) AS f
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_catalog.pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable
    FROM aclexplode(f.acl || '{}'::aclitem[]) AS a -- unpacked once, not for each entry
    WHERE a.grantee = ANY ($1::oid[]) OR (a.grantee = 0 AND f.relation >= 16384)
) AS e
WHERE e.grantees IS NOT NULL
ORDER BY f.relation, f.place
LIMIT 20001
