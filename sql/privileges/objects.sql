-- Which objects have which ACL? One row for each distinct owner and ACL in a schema: few rows, whatever the number of objects.
-- Rows of schemas that are not asked for are left out, unless a grantee holds something there that it does not own.
-- Within a row, object n has number n of `oids` and `versions` (acl_rows.numbers), and name n of `names`, which NUL separates. These
-- are NULL if they are too long for one row, beside other answers; those of 50,000 objects are not.
-- `elevated`: whether a routine can do more than its caller: it is SECURITY DEFINER, or in a language that is not trusted. Not in
-- internal, in which PostgreSQL makes aggregates and the constructors of ranges for everyone.
-- `extension`, `with_columns`: whether the objects belong to an extension, and whether columns of them have an ACL; NULL: unknown.
-- An ACL has at most 10,000 entries of the grantees in an answer; of a longer one, postgres/privileges/acl_entries.py reads the others.
-- `largest_acl`: number of entries in the largest ACL of the relations that were looked at. It is limited, since pg_class has no
-- TOAST table. `page_key`, `page_size`: postgres/answer_pages.py. Relation object: sql/privileges/sources.
-- $1 oid[] grantees   $2 oid[] schemas whose relations are asked for, $3 oid[] whose routines are; NULL: all
-- $4 oid[] relations that get rows of their own and are asked for
SELECT
    g.catalog, textsend(n.nspname::text) AS schema, g.kind::text AS kind, g.owner,
    textsend(pg_catalog.pg_get_userbyid(g.owner)::text) AS owner_name, g.elevated,
    g.extension, g.with_columns, g.apart, coalesce(e.held, false) AS held,
    CASE WHEN l.fits THEN g.oids END AS oids, CASE WHEN l.fits THEN g.names END AS names,
    CASE WHEN l.fits THEN g.versions END AS versions, g.seen, e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable,
    coalesce(g.largest_acl, 0) AS largest_acl,
    (g.catalog::bigint << 32) + g.first AS page_key,
    1200 + CASE WHEN l.fits THEN l.bytes ELSE 0 END + 110 * coalesce(cardinality(e.grantees), 0) AS page_size
FROM (
    SELECT
        o.catalog, o.schema, o.kind, o.owner, o.acl, o.initial, o.elevated, o.apart, o.extension, o.with_columns,
        '\x01'::bytea || string_agg(oidsend(o.oid), ''::bytea) AS oids,
        string_agg(textsend(o.name::text), '\x00'::bytea) AS names,
        '\x01'::bytea || string_agg(xidsend(o.version), ''::bytea) AS versions, min(o.oid::bigint) AS first,
        to_hex(hashtextextended(format('%s %s', o.owner, o.acl) COLLATE "C", 0)) AS seen,
        max(CASE WHEN o.catalog = 'pg_class'::regclass THEN cardinality(o.acl) END) OVER () AS largest_acl
    FROM object AS o
    GROUP BY
        o.catalog, o.schema, o.kind, o.owner, o.acl, o.initial, o.elevated, o.apart, o.extension, o.with_columns
) AS g
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = g.schema
CROSS JOIN LATERAL (
    SELECT b.bytes, b.bytes <= CASE WHEN getdatabaseencoding() IN ('UTF8', 'SQL_ASCII') THEN 3600000 ELSE 1200000 END AS fits
    FROM (SELECT octet_length(g.oids) + octet_length(g.names) + octet_length(g.versions) AS bytes OFFSET 0) AS b
) AS l
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable,
        bool_or(a.grantee <> g.owner) AS held
    FROM (
        SELECT x.*
        FROM aclexplode(coalesce(g.acl, acldefault(g.initial, g.owner)) || '{}'::aclitem[]) AS x -- unpacked once, not for each entry
        WHERE x.grantee = ANY ($1::oid[])
        LIMIT 10000
    ) AS a
) AS e
WHERE g.apart OR e.held
   OR CASE WHEN g.catalog = 'pg_proc'::regclass THEN $3::oid[] IS NULL OR g.schema = ANY ($3::oid[])
       ELSE $2::oid[] IS NULL OR g.schema = ANY ($2::oid[]) END
