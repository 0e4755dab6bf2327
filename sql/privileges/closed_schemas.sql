-- In which of the schemas of these objects, and of the types of their arguments, may a role not look up names? One row for each.
-- $1 name[] the role, or $2 bytea[] if its name is not UTF-8   $3 oid[] relations   $4 oid[] routines
SELECT n.oid, textsend(n.nspname::text) AS name
FROM pg_catalog.pg_namespace AS n
-- a database that converts names may hold some that it cannot convert
JOIN pg_catalog.pg_roles AS r ON r.rolname = ANY ($1::name[])
    OR CASE WHEN cardinality($2::bytea[]) > 0
        THEN decode(replace(r.rolname::text, '\', '\\'), 'escape') = ANY ($2::bytea[]) ELSE false END
WHERE n.oid IN (
    SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = ANY ($3::oid[])
    UNION
    SELECT p.pronamespace FROM pg_catalog.pg_proc AS p WHERE p.oid = ANY ($4::oid[])
    UNION
    SELECT t.typnamespace
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_type AS t ON t.oid = ANY (p.proargtypes)
    WHERE p.oid = ANY ($4::oid[])
) AND NOT has_schema_privilege(r.oid, n.oid, 'USAGE')
