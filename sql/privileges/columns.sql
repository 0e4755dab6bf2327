-- Which privileges do the grantees have on columns? One row for each table and ACL of columns, with the columns that have it. Without
-- $2, columns with an ACL are found in pg_shdepend, since pg_attribute is much larger: those in whose ACLs only the owner or PUBLIC is
-- are missing. Within a row, column n has name n of `columns`, which NUL separates, and number n of `versions` (acl_rows.numbers). An
-- ACL in pg_attribute has to fit in a page. `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] grantees   $2 oid[] tables; NULL: all whose oids are above $3 oid, and up to $4 oid
-- $5 bigint key: tables with a lower one need not be read
SELECT
    f.relation, f.columns, f.versions, e.grantees, e.grantors, e.grantor_names, e.privileges, e.grantable,
    (f.relation::bigint << 16) + f.place AS page_key, 700 + 70 * f.count + 110 * cardinality(e.grantees) AS page_size
FROM (
    SELECT
        c.relation, c.acl, min(c.place) + 100 AS place, count(*) AS count,
        string_agg(textsend(c.name::text), '\x00'::bytea) AS columns,
        '\x01'::bytea || string_agg(xidsend(c.version), ''::bytea) AS versions
    FROM (
        SELECT c.attrelid AS relation, c.attname AS name, c.attnum AS place, c.attacl AS acl, c.xmin AS version
        FROM (
            -- two ranges, since <> cannot use the index; UNION: each column once
            SELECT s.objid, s.objsubid
            FROM pg_catalog.pg_shdepend AS s
            WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
              AND s.classid = 'pg_class'::regclass AND s.objsubid > 0
              AND $2::oid[] IS NULL AND s.objid > $3::oid AND s.objid <= $4::oid AND s.objid::bigint >= $5::bigint >> 16
            UNION
            SELECT s.objid, s.objsubid
            FROM pg_catalog.pg_shdepend AS s
            WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
              AND s.classid = 'pg_class'::regclass AND s.objsubid < 0
              AND $2::oid[] IS NULL AND s.objid > $3::oid AND s.objid <= $4::oid AND s.objid::bigint >= $5::bigint >> 16
        ) AS d
        JOIN pg_catalog.pg_attribute AS c ON c.attrelid = d.objid AND c.attnum = d.objsubid AND NOT c.attisdropped
        WHERE c.attrelid >= 16384 AND c.attacl IS NOT NULL
        UNION ALL
        SELECT c.attrelid, c.attname, c.attnum, c.attacl, c.xmin
        FROM pg_catalog.pg_attribute AS c
        WHERE c.attrelid = ANY ($2::oid[]) AND c.attrelid >= 16384 AND c.attacl IS NOT NULL AND NOT c.attisdropped
          AND c.attrelid::bigint >= $5::bigint >> 16
    ) AS c
    GROUP BY c.relation, c.acl
) AS f
CROSS JOIN LATERAL (
    SELECT
        array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
        array_agg(textsend(pg_get_userbyid(a.grantor)::text)) AS grantor_names,
        array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable
    FROM aclexplode(f.acl || '{}'::aclitem[]) AS a -- unpacked once, not for each entry
    WHERE a.grantee = ANY ($1::oid[])
) AS e
WHERE e.grantees IS NOT NULL
