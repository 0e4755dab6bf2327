-- Which rights does the controller's role have on one role, its groups and its grantors? One row.
-- Names are sent as bytes: another database may have written them in its encoding.
-- $1 oid the role (0: does not exist)   $2 name[] roles to join or leave, and grantors of memberships
-- $3 bytea[] those of them that are not UTF-8   $4 text[] parameters, in lower case
-- $5 boolean whether to read the databases in which RESET ALL would keep parameters of the role ('': those for all)
WITH beside AS (
    SELECT r.oid, r.rolname, r.rolsuper
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = ANY ($2::name[])
       -- a database that converts names may hold some that it cannot convert
       OR CASE WHEN cardinality($3::bytea[]) > 0 THEN textsend(r.rolname::text) = ANY ($3::bytea[]) ELSE false END
)
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
        SELECT textsend(g.rolname::text)
        FROM beside AS g
        WHERE pg_catalog.pg_has_role(own.oid, g.oid, 'MEMBER WITH ADMIN OPTION')
    ) AS administers,
    ARRAY(
        SELECT textsend(b.rolname::text) FROM beside AS b WHERE pg_catalog.pg_has_role(own.oid, b.oid, 'USAGE')
    ) AS acts_for,
    ARRAY(SELECT textsend(s.rolname::text) FROM beside AS s WHERE s.rolsuper) AS superusers,
    ARRAY(
        SELECT lower(c.name) FROM pg_catalog.pg_settings AS c WHERE lower(c.name) = ANY ($4::text[]) AND c.context = 'user'
    ) AS settable,
    ARRAY(
        SELECT coalesce(textsend(d.datname::text), ''::bytea)
        FROM pg_catalog.pg_db_role_setting AS s LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
        WHERE $5 AND s.setrole = $1 AND EXISTS (
            SELECT FROM unnest(s.setconfig) AS o (setting)
            WHERE NOT EXISTS (
                SELECT FROM pg_catalog.pg_settings AS c
                WHERE c.context = 'user' AND lower(c.name) = lower(split_part(o.setting, '=', 1))
            )
        )
    ) AS keeping
FROM pg_catalog.pg_roles AS own
LEFT JOIN pg_catalog.pg_roles AS t ON t.oid = $1
WHERE own.rolname = session_user
