-- For which privileges that it granted on columns has a role lost the grant option? If it loses the one on the whole table,
-- PostgreSQL keeps what it granted on columns, and lets it revoke nothing there. One row for each table and privilege, or two:
-- `kept`: whether it has the privilege itself, so that only a grant option would be taken back from it. NUL separates the columns.
-- $1 name[] the role, or $2 bytea[] if its name is not UTF-8   $3 oid[] tables   $4 bytea[] columns   $5 text[] privileges
SELECT
    c.oid, textsend(n.nspname::text) AS schema, textsend(c.relname::text) AS name, g.privilege_type AS privilege, h.kept,
    string_agg(textsend(a.attname::text), '\x00'::bytea ORDER BY a.attnum) AS columns
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND NOT a.attisdropped AND a.attacl IS NOT NULL
-- a database that converts names may hold some that it cannot convert
JOIN pg_catalog.pg_roles AS r ON r.rolname = ANY ($1::name[])
    OR CASE WHEN cardinality($2::bytea[]) > 0
        THEN decode(replace(r.rolname::text, '\', '\\'), 'escape') = ANY ($2::bytea[]) ELSE false END
CROSS JOIN LATERAL (
    SELECT DISTINCT e.grantor, e.privilege_type FROM aclexplode(a.attacl || '{}'::aclitem[]) AS e WHERE e.grantor = r.oid
) AS g
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM aclexplode(a.attacl || '{}'::aclitem[]) AS k -- unpacked once, not for each entry
        WHERE k.grantee = g.grantor AND k.grantor = c.relowner AND k.privilege_type = g.privilege_type
    ) AS kept
) AS h
WHERE c.oid = ANY ($3::oid[]) AND textsend(a.attname::text) = ANY ($4::bytea[]) AND g.privilege_type = ANY ($5::text[])
  AND r.oid <> c.relowner AND NOT EXISTS (
      SELECT FROM aclexplode(coalesce(c.relacl, '{}') || a.attacl) AS o
      WHERE o.grantee = r.oid AND o.privilege_type = g.privilege_type AND o.is_grantable
  )
GROUP BY c.oid, n.nspname, c.relname, g.privilege_type, h.kept
ORDER BY c.oid, g.privilege_type
