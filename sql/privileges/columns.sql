-- Which privileges do the grantees have on columns? One row for each table on whose columns they have some. Without $2, columns with
-- an ACL are found in pg_shdepend, since pg_attribute is much larger: those in whose ACLs only the owner or PUBLIC is are missing.
-- $1 oid[] grantees   $2 oid[] tables; NULL: all whose oids are above $3 oid, and up to $4 oid
SELECT
    f.relation, array_agg(textsend(f.name::text)) AS columns, array_agg(f.version::text::bigint) AS versions,
    array_agg(a.grantee) AS grantees, array_agg(a.grantor) AS grantors,
    array_agg(textsend(pg_get_userbyid(a.grantor)::text)) AS grantor_names,
    array_agg(a.privilege_type) AS privileges, array_agg(a.is_grantable) AS grantable
FROM (
    SELECT c.attrelid AS relation, c.attname AS name, c.attacl AS acl, c.xmin AS version
    FROM (
        SELECT DISTINCT s.objid, s.objsubid
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
          AND s.classid = 'pg_class'::regclass AND s.objsubid > 0
          AND $2::oid[] IS NULL AND s.objid > $3::oid AND s.objid <= $4::oid
    ) AS d
    JOIN pg_catalog.pg_attribute AS c ON c.attrelid = d.objid AND c.attnum = d.objsubid AND NOT c.attisdropped
    WHERE c.attrelid >= 16384
    UNION ALL
    SELECT c.attrelid, c.attname, c.attacl, c.xmin
    FROM pg_catalog.pg_attribute AS c
    WHERE c.attrelid = ANY ($2::oid[]) AND c.attrelid >= 16384 AND c.attacl IS NOT NULL AND NOT c.attisdropped
) AS f
CROSS JOIN LATERAL aclexplode(f.acl) AS a
WHERE a.grantee = ANY ($1::oid[])
GROUP BY f.relation
