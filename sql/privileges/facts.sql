-- What policies need to know of the database besides its objects. One row. $1 text[] roles that declarations name as creators
SELECT
    textsend(current_database()::text) AS database, current_setting('server_version_num')::int AS version,
    ARRAY(SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper) AS superusers,
    ARRAY(
        SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname IN (current_user, session_user)
    ) AS own_roles,
    ARRAY(
        SELECT DISTINCT substring(textsend(substring(c.setting FROM 13 FOR 2000)) FROM 1 FOR 2000)
        FROM (
            SELECT s.setconfig
            FROM pg_catalog.pg_db_role_setting AS s
            JOIN pg_catalog.pg_database AS d ON d.datname = current_database() AND s.setdatabase IN (0, d.oid)
            UNION ALL
            SELECT p.proconfig FROM pg_catalog.pg_proc AS p WHERE p.oid >= 16384 AND p.proconfig IS NOT NULL
        ) AS s
        CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
        WHERE c.setting LIKE 'search\_path=%'
        LIMIT 1000
    ) AS search_paths,
    ARRAY(
        SELECT textsend(n.nspname::text)
        FROM pg_catalog.pg_namespace AS n
        -- by index: a database has fewer schemas than a server has roles
        WHERE EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = n.nspname OFFSET 0)
    ) AS role_schemas,
    creators.oids AS creators, creators.names AS creator_names
FROM (
    SELECT array_agg(r.oid) AS oids, array_agg(textsend(r.rolname::text)) AS names
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = ANY ($1::text[]::name[])
) AS creators
