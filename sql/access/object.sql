-- Which ACLs do this object and its schema have? One row for each, and one for each column that has an ACL; of an ACL with more
-- than 5,000 entries, several (`part`). `page_key`, `page_size`: postgres/answer_pages.py.
-- `xmin`: which transaction wrote the row with the ACL last. `changed_at`: when, if the server keeps track_commit_timestamp.
-- $1 oid catalog   $2 oid object
SELECT
    x.catalog, x.oid, x.kind::text AS kind, x.schema_oid, textsend(coalesce(n.nspname::text, '')) AS schema,
    textsend(x.name::text) AS name, x.owner, textsend(pg_catalog.pg_get_userbyid(x.owner)::text) AS owner_name,
    textsend(x.arguments) AS arguments, textsend(x.column_name::text) AS column_name,
    x.version::text::bigint AS xmin,
    EXISTS (
        SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid = x.catalog AND d.objid = x.oid AND d.objsubid = 0 AND d.deptype = 'e'
    ) AS extension,
    CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN pg_catalog.pg_xact_commit_timestamp(x.version) END AS changed_at,
    coalesce(a.part, 0) AS part, a.grantees, a.grantors, a.grantor_names, a.privileges, a.grantable,
    CASE WHEN x.catalog = $1::oid THEN 0 ELSE 1::bigint << 60 END + ((x.place + 100)::bigint << 40) + coalesce(a.part, 0) AS page_key,
    20000 + 110 * coalesce(cardinality(a.grantees), 0) AS page_size
FROM (
    SELECT
        'pg_class'::regclass::oid AS catalog, c.oid, c.relkind AS kind, c.relnamespace AS schema_oid, c.relname AS name,
        c.relowner AS owner, '' AS arguments, 0 AS place, ''::name AS column_name, c.xmin AS version,
        coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner)) AS acl
    FROM pg_catalog.pg_class AS c
    WHERE $1::oid = 'pg_class'::regclass AND c.oid = $2::oid
    UNION ALL
    SELECT 'pg_class'::regclass, c.oid, c.relkind, c.relnamespace, c.relname, c.relowner, '', t.attnum, t.attname, t.xmin, t.attacl
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS t ON t.attrelid = c.oid
    WHERE $1::oid = 'pg_class'::regclass AND c.oid = $2::oid AND t.attacl IS NOT NULL AND NOT t.attisdropped
    UNION ALL
    SELECT
        'pg_proc'::regclass, p.oid, 'f', p.pronamespace, p.proname, p.proowner,
        pg_catalog.oidvectortypes(p.proargtypes), 0, '', p.xmin, coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_catalog.pg_proc AS p
    WHERE $1::oid = 'pg_proc'::regclass AND p.oid = $2::oid
    UNION ALL
    SELECT
        'pg_namespace'::regclass, s.oid, 'n', s.oid, s.nspname, s.nspowner, '', 0, '', s.xmin,
        coalesce(s.nspacl, acldefault('n', s.nspowner))
    FROM pg_catalog.pg_namespace AS s
    WHERE s.oid = CASE $1::oid
        WHEN 'pg_namespace'::regclass THEN $2::oid
        WHEN 'pg_class'::regclass THEN (SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = $2::oid)
        ELSE (SELECT p.pronamespace FROM pg_catalog.pg_proc AS p WHERE p.oid = $2::oid)
    END
) AS x
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = x.schema_oid
LEFT JOIN LATERAL (
    SELECT
        b.part, array_agg(b.grantee) AS grantees, array_agg(b.grantor) AS grantors,
        array_agg(textsend(pg_catalog.pg_get_userbyid(b.grantor)::text)) AS grantor_names,
        array_agg(b.privilege_type) AS privileges, array_agg(b.is_grantable) AS grantable
    FROM (SELECT e.*, (row_number() OVER () - 1) / 5000 AS part FROM aclexplode(x.acl || '{}'::aclitem[]) AS e) AS b
    GROUP BY b.part
) AS a ON true
