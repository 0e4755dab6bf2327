-- Which of the privileges that a session needs does the controller's role have in this database? One row.
-- Names are sent as bytes: another database may have written them in its encoding.
SELECT
    textsend(own.rolname::text) AS own_role,
    textsend(pg_catalog.current_database()::text) AS database,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS creates,
    n.oid IS NOT NULL AS present,
    coalesce(n.nspowner = own.oid OR own.rolsuper, false) AS owns,
    coalesce(
        pg_catalog.has_schema_privilege(n.oid, 'USAGE')
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_class AS c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
            WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
              AND NOT pg_catalog.has_table_privilege(c.oid, p.privilege)
        )
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_proc AS f
            WHERE f.pronamespace = n.oid AND NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
        ),
        false
    ) AS uses,
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'xmin', 'SELECT') AS sees_versions,
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT') AS sees_passwords,
    pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') AS sees_system
FROM pg_catalog.pg_roles AS own
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'pgrole'
WHERE own.rolname = session_user
