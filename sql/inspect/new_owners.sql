-- Which of these roles exist, to become the owner of another role's objects, and which namespace claims each of them?
-- Relation claim: sql/sources.
-- $1 name[] roles   $2 bigint system identifier
SELECT r.rolname::text AS name, r.oid, c.cluster, c.namespace, c.namespace_uid
FROM pg_catalog.pg_roles AS r
LEFT JOIN claim AS c ON c.role_oid = r.oid AND c.role_oid <> 0 AND c.system_identifier = $2 AND c.released_at IS NULL
WHERE r.rolname = ANY ($1::name[])
