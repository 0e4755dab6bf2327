-- What may our role do about one role and what is beside it? One row. Our name comes as bytes: another database may have
-- written it in its encoding.
-- $1 oid the role (0: it is not there)   $2 name[] roles to join or leave   $3 name[] grantors of memberships
-- $4 text[] parameters, in lower case
SELECT
    textsend(own.rolname::text) AS own_role,
    ARRAY(
        SELECT p.attribute
        FROM (VALUES
            ('superuser', own.rolsuper), ('createrole', own.rolcreaterole), ('createdb', own.rolcreatedb),
            ('replication', own.rolreplication), ('bypassrls', own.rolbypassrls)
        ) AS p (attribute, held)
        WHERE p.held
    ) AS attributes,
    coalesce(t.rolsuper, false) AS is_superuser,
    coalesce(t.rolreplication, false) AS is_replication,
    t.oid IS NULL OR pg_catalog.pg_has_role(own.oid, t.oid, 'MEMBER WITH ADMIN OPTION') AS administered,
    ARRAY(
        SELECT g.rolname::text
        FROM pg_catalog.pg_roles AS g
        WHERE g.rolname = ANY ($2::name[]) AND pg_catalog.pg_has_role(own.oid, g.oid, 'MEMBER WITH ADMIN OPTION')
    ) AS administers,
    ARRAY(
        SELECT b.rolname::text
        FROM pg_catalog.pg_roles AS b
        WHERE b.rolname = ANY ($3::name[]) AND pg_catalog.pg_has_role(own.oid, b.oid, 'USAGE')
    ) AS acts_for,
    ARRAY(
        SELECT s.rolname::text FROM pg_catalog.pg_roles AS s WHERE s.rolname = ANY ($2::name[] || $3::name[]) AND s.rolsuper
    ) AS superusers,
    ARRAY(
        SELECT lower(c.name) FROM pg_catalog.pg_settings AS c WHERE lower(c.name) = ANY ($4::text[]) AND c.context = 'user'
    ) AS settable
FROM pg_catalog.pg_roles AS own
LEFT JOIN pg_catalog.pg_roles AS t ON t.oid = $1
WHERE own.rolname = session_user
