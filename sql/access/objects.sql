-- On which objects do these roles, or every role, hold something? One row for each distinct owner and ACL in a schema, and one
-- for each relation with ACLs of columns (`apart`); PostgreSQL's own objects only if one of the roles is named in their ACL.
-- `names`: of at most $3 objects, and not more than 1 MiB. `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] roles   $2 boolean objects without such an entry too, since a predefined role may use them   $3 integer
WITH relation_with_columns AS MATERIALIZED (
    SELECT DISTINCT t.attrelid AS relation
    FROM pg_catalog.pg_attribute AS t
    CROSS JOIN LATERAL aclexplode(t.attacl || '{}'::aclitem[]) AS e -- unpacked once, not for each entry
    WHERE t.attacl IS NOT NULL AND NOT t.attisdropped
      AND (e.grantee = ANY ($1::oid[]) OR (e.grantee = 0 AND t.attrelid >= 16384))
),
object AS (
    SELECT
        'pg_class'::regclass::oid AS catalog, c.oid, c.relnamespace AS schema, c.relkind AS kind, c.relowner AS owner,
        c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END AS initial, c.relname::text AS name,
        b.relation AS apart, c.oid >= 16384 AS usual, c.oid < 12000 AS pinned
    FROM pg_catalog.pg_class AS c LEFT JOIN relation_with_columns AS b ON b.relation = c.oid
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
      AND (c.oid >= 16384 OR c.relacl IS NOT NULL)
    UNION ALL
    SELECT
        'pg_proc'::regclass, p.oid, p.pronamespace, 'f', p.proowner, p.proacl, 'f',
        p.proname::text || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')', NULL, p.oid >= 16384, false
    FROM pg_catalog.pg_proc AS p
    WHERE p.oid >= 16384 OR p.proacl IS NOT NULL
    UNION ALL
    SELECT
        'pg_namespace'::regclass, n.oid, n.oid, 'n', n.nspowner, n.nspacl, 'n', n.nspname, n.oid,
        n.oid >= 16384 OR n.oid = 2200, false
    FROM pg_catalog.pg_namespace AS n
    WHERE n.nspname !~ '^pg_(temp|toast)'
    UNION ALL
    SELECT 'pg_type'::regclass, t.oid, t.typnamespace, 'T', t.typowner, t.typacl, 'T', t.typname, NULL, true, false
    FROM pg_catalog.pg_type AS t
    -- not those that come with a table, an array or a multirange
    WHERE t.typacl IS NOT NULL OR (
        t.oid >= 16384 AND t.typowner = ANY ($1::oid[])
        AND (t.typtype IN ('c', 'd', 'e', 'r') OR (t.typtype = 'b' AND t.typcategory <> 'A'))
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.typrelid AND c.relkind <> 'c')
    )
    UNION ALL
    SELECT 'pg_language'::regclass, l.oid, 0, 'l', l.lanowner, l.lanacl, 'l', l.lanname, NULL, true, false
    FROM pg_catalog.pg_language AS l
    WHERE l.lanacl IS NOT NULL OR l.lanowner = ANY ($1::oid[])
    UNION ALL
    SELECT 'pg_foreign_data_wrapper'::regclass, f.oid, 0, 'F', f.fdwowner, f.fdwacl, 'F', f.fdwname, NULL, true, false
    FROM pg_catalog.pg_foreign_data_wrapper AS f
    UNION ALL
    SELECT 'pg_foreign_server'::regclass, f.oid, 0, 's', f.srvowner, f.srvacl, 'S', f.srvname, NULL, true, false
    FROM pg_catalog.pg_foreign_server AS f
    UNION ALL
    SELECT 'pg_largeobject'::regclass, m.oid, 0, 'L', m.lomowner, m.lomacl, 'L', m.oid::text, NULL, true, false
    FROM pg_catalog.pg_largeobject_metadata AS m
)
SELECT
    g.catalog, g.kind::text AS kind, textsend(coalesce(n.nspname::text, '')) AS schema, g.owner,
    textsend(pg_catalog.pg_get_userbyid(g.owner)::text) AS owner_name,
    g.count, g.oid, f.names, g.extension,
    g.catalog = 'pg_class'::regclass AND g.apart IS NOT NULL AS apart,
    e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable,
    (g.catalog::bigint << 32) + g.oid::bigint AS page_key,
    1200 + 2 * coalesce(f.bytes, 0) + 110 * coalesce(cardinality(e.grantees), 0) AS page_size
FROM (
    SELECT
        o.catalog, o.schema, o.kind, o.owner, o.acl, o.initial, o.apart, o.usual, o.pinned, m.extension,
        count(*) AS count, min(o.oid) AS oid,
        (array_agg(textsend(o.name)))[1:$3::int] AS names
    FROM object AS o
    CROSS JOIN LATERAL (
        SELECT (o.catalog, o.oid) IN (SELECT d.classid, d.objid FROM pg_catalog.pg_depend AS d WHERE d.deptype = 'e') AS extension
        OFFSET 0
    ) AS m
    GROUP BY o.catalog, o.schema, o.kind, o.owner, o.acl, o.initial, o.apart, o.usual, o.pinned, m.extension
) AS g
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = g.schema
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_catalog.pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable,
        bool_or(a.grantee <> 0) AS named
    FROM aclexplode(coalesce(g.acl, acldefault(g.initial, g.owner)) || '{}'::aclitem[]) AS a
    WHERE a.grantee = ANY ($1::oid[]) OR a.grantee = 0
) AS e
CROSS JOIN LATERAL (
    SELECT array_agg(n.name) AS names, max(n.bytes) AS bytes
    FROM (
        SELECT u.name, sum(octet_length(u.name) + 40) OVER (ORDER BY u.place) AS bytes
        FROM unnest(g.names) WITH ORDINALITY AS u (name, place)
    ) AS n
    WHERE n.bytes <= 1048576
) AS f
WHERE e.named OR (g.catalog = 'pg_class'::regclass AND g.apart IS NOT NULL)
   OR (g.usual AND (e.grantees IS NOT NULL OR $2 OR g.catalog = 'pg_namespace'::regclass))
ORDER BY g.catalog, n.nspname, g.kind, g.oid
LIMIT 20001
