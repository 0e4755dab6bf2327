-- In which of the schemas of these objects, and of the types of their arguments, may a role not look up names? One row for each.
-- $1 bytea name of the role   $2 oid[] relations   $3 oid[] routines
SELECT n.oid, textsend(n.nspname::text) AS name
FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_roles AS r ON textsend(r.rolname::text) = $1::bytea
WHERE n.oid IN (
    SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = ANY ($2::oid[])
    UNION
    SELECT p.pronamespace FROM pg_catalog.pg_proc AS p WHERE p.oid = ANY ($3::oid[])
    UNION
    SELECT t.typnamespace
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_type AS t ON t.oid = ANY (p.proargtypes)
    WHERE p.oid = ANY ($3::oid[])
) AND NOT has_schema_privilege(r.oid, n.oid, 'USAGE')
