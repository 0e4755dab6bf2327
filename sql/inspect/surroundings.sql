-- What is there of what roles refer to? One row for each that is.
-- $1 name[] roles to be a member of   $2 text[] parameters, in lower case   $3 name[] databases
SELECT 'role' AS kind, g.rolname::text AS name, NULL AS context, ARRAY(
    WITH RECURSIVE reached AS (
        SELECT g.oid AS roleid
        UNION
        SELECT m.roleid FROM reached AS h JOIN pg_catalog.pg_auth_members AS m ON m.member = h.roleid
    )
    SELECT textsend(x.rolname::text)
    FROM reached AS h JOIN pg_catalog.pg_roles AS x ON x.oid = h.roleid
    WHERE x.rolsuper
       OR x.rolname IN (
               'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_write_all_data'
           )
       OR x.rolname IN (current_user, session_user)
    ORDER BY 1
) AS reaches
FROM pg_catalog.pg_roles AS g
WHERE g.rolname = ANY ($1::name[])
UNION ALL
SELECT 'parameter', lower(s.name), s.context, NULL
FROM pg_catalog.pg_settings AS s
WHERE cardinality($2::text[]) > 0 AND lower(s.name) = ANY ($2::text[])
UNION ALL
SELECT DISTINCT 'module', e.name::text, NULL, NULL::bytea[]
FROM unnest($2::text[]) AS p (parameter)
JOIN pg_catalog.pg_available_extensions AS e ON e.name = split_part(p.parameter, '.', 1)
WHERE p.parameter LIKE '%.%'
UNION ALL
SELECT 'database', d.datname::text, NULL, NULL
FROM pg_catalog.pg_database AS d
WHERE d.datname = ANY ($3::name[])
