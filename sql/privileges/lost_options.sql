-- For which privileges that it granted on columns has a role lost the grant option? If it loses the one on the whole table,
-- PostgreSQL keeps what it granted on columns, and lets it revoke nothing there. One row for each column and privilege.
-- `kept`: whether it has the privilege itself, so that only a grant option would be taken back from it.
-- $1 bytea name of the role   $2 oid[] tables   $3 bytea[] columns   $4 text[] privileges
SELECT
    c.oid, textsend(n.nspname::text) AS schema, textsend(c.relname::text) AS name,
    textsend(a.attname::text) AS column_name, g.privilege_type AS privilege,
    EXISTS (
        SELECT FROM aclexplode(a.attacl) AS k
        WHERE k.grantee = g.grantor AND k.grantor = c.relowner AND k.privilege_type = g.privilege_type
    ) AS kept
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND NOT a.attisdropped
JOIN pg_catalog.pg_roles AS r ON textsend(r.rolname::text) = $1::bytea
CROSS JOIN LATERAL (
    SELECT DISTINCT e.grantor, e.privilege_type FROM aclexplode(a.attacl) AS e WHERE e.grantor = r.oid
) AS g
WHERE c.oid = ANY ($2::oid[]) AND textsend(a.attname::text) = ANY ($3::bytea[]) AND g.privilege_type = ANY ($4::text[])
  AND r.oid <> c.relowner AND NOT EXISTS (
      SELECT FROM aclexplode(coalesce(c.relacl, '{}') || a.attacl) AS o
      WHERE o.grantee = r.oid AND o.privilege_type = g.privilege_type AND o.is_grantable
  )
ORDER BY c.oid, a.attnum, g.privilege_type
