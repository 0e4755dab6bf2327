-- Which databases exist, and with which ACL? `current`: the connection's. `allowed`: it accepts connections. One row for each; of an
-- ACL with more than 5,000 entries, several. `page_key`, `page_size`: postgres/answer_pages.py.
SELECT
    d.oid, textsend(d.datname::text) AS name, d.datdba AS owner, d.datallowconn AS allowed, d.datistemplate AS template,
    d.datname = current_database() AS current,
    pg_catalog.has_database_privilege(d.oid, 'CONNECT') AS connects,
    a.grantees, a.grantors, a.grantor_names, a.privileges, a.grantable,
    (d.oid::bigint << 24) + coalesce(a.part, 0) AS page_key, 1000 + 110 * coalesce(cardinality(a.grantees), 0) AS page_size
FROM pg_catalog.pg_database AS d
LEFT JOIN LATERAL (
    SELECT
        b.part, array_agg(b.grantee) AS grantees, array_agg(b.grantor) AS grantors,
        array_agg(textsend(pg_catalog.pg_get_userbyid(b.grantor)::text)) AS grantor_names,
        array_agg(b.privilege_type) AS privileges, array_agg(b.is_grantable) AS grantable
    FROM (
        SELECT e.*, (row_number() OVER () - 1) / 5000 AS part
        FROM aclexplode(coalesce(d.datacl, acldefault('d', d.datdba)) || '{}'::aclitem[]) AS e
    ) AS b
    GROUP BY b.part
) AS a ON true
