-- Which of the referenced roles, parameters, extensions and databases exist? One row for each that does.
-- `reached`: the roles that a role is directly or indirectly a member of, as far as policies need them: roles with powers, the
-- roles of the hard rules, and names that match a pattern; at most 200 of them, since roles with CREATEROLE can create any
-- number. OFFSET 0: each is found by index, instead of reading all roles or memberships.
-- $1 name[] roles to be a member of   $2 text[] parameters, in lower case   $3 name[] databases
-- $4 bytea[] patterns of names, as for LIKE
SELECT 'role' AS kind, g.rolname::text AS name, NULL AS context, (
    WITH RECURSIVE reached AS (
        SELECT g.oid AS roleid
        UNION
        SELECT m.roleid
        FROM reached AS h
        CROSS JOIN LATERAL (SELECT i.roleid FROM pg_catalog.pg_auth_members AS i WHERE i.member = h.roleid OFFSET 0) AS m
    )
    SELECT textsend(json_agg(json_build_object('name', y.rolname, 'powers', y.powers, 'hard', y.hard) ORDER BY y.rolname)::text)
    FROM (
        SELECT x.rolname, p.powers, k.hard
        FROM reached AS h
        CROSS JOIN LATERAL (SELECT i.* FROM pg_catalog.pg_roles AS i WHERE i.oid = h.roleid OFFSET 0) AS x
        CROSS JOIN LATERAL (
            SELECT array_remove(ARRAY[
                CASE WHEN x.rolsuper THEN 'superuser' END, CASE WHEN x.rolcreaterole THEN 'createrole' END,
                CASE WHEN x.rolcreatedb THEN 'createdb' END, CASE WHEN x.rolreplication THEN 'replication' END,
                CASE WHEN x.rolbypassrls THEN 'bypassrls' END
            ], NULL) AS powers
        ) AS p
        CROSS JOIN LATERAL (
            SELECT x.rolsuper
                OR x.rolname IN (
                    'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_write_all_data'
                )
                OR x.rolname IN (current_user, session_user) AS hard
        ) AS k
        WHERE k.hard OR cardinality(p.powers) > 0 OR textsend(x.rolname::text) LIKE ANY ($4::bytea[])
        ORDER BY k.hard DESC, x.rolcreaterole DESC, x.rolreplication DESC, x.rolbypassrls DESC, x.rolname
        LIMIT 200
    ) AS y
) AS reached
FROM pg_catalog.pg_roles AS g
WHERE g.rolname = ANY ($1::name[])
UNION ALL
SELECT 'parameter', lower(s.name), s.context, NULL
FROM pg_catalog.pg_settings AS s
WHERE cardinality($2::text[]) > 0 AND lower(s.name) = ANY ($2::text[])
UNION ALL
-- An extension's parameters begin with its name, or with that name without pg_ or underscores (cron, pgtle).
SELECT DISTINCT 'module', m.prefix, NULL, NULL::bytea
FROM unnest($2::text[]) AS p (parameter)
CROSS JOIN LATERAL (SELECT split_part(p.parameter, '.', 1) AS prefix) AS m
JOIN pg_catalog.pg_available_extensions AS e
    ON replace(lower(e.name), '_', '') IN (replace(m.prefix, '_', ''), 'pg' || replace(m.prefix, '_', ''))
WHERE p.parameter LIKE '%.%'
UNION ALL
SELECT 'database', d.datname::text, CASE WHEN d.datistemplate THEN 'template' END, NULL
FROM pg_catalog.pg_database AS d
WHERE d.datname = ANY ($3::name[])
