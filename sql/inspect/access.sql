-- Which of the privileges that a session needs does the controller's role have in this database? One row.
-- `forbidden`: tables, views and routines of schema pgrole that it may not use (sorted, at most 500).
-- Names are sent as bytes: another database may have written them in its encoding.
SELECT
    textsend(own.rolname::text) AS own_role,
    textsend(pg_catalog.current_database()::text) AS database,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS creates,
    EXISTS (SELECT FROM pg_catalog.pg_publication AS b WHERE b.puballtables) AS publishes,
    n.oid IS NOT NULL AS present,
    coalesce(n.nspowner = own.oid OR own.rolsuper, false) AS owns,
    coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false) AND f.names = '{}' AS uses,
    f.names AS forbidden,
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'xmin', 'SELECT') AS sees_versions,
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT') AS sees_passwords,
    pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') AS sees_system,
    -- whether it may use the language of the controller's own statements; null: the language does not exist
    (
        SELECT pg_catalog.has_language_privilege(l.oid, 'USAGE')
        FROM pg_catalog.pg_language AS l
        WHERE l.lanname = 'plpgsql'
    ) AS language
FROM pg_catalog.pg_roles AS own
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'pgrole'
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT textsend(c.relname::text)
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
          AND NOT (
              pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
              AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE')
          )
        UNION ALL
        SELECT textsend(p.proname::text)
        FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = n.oid AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
        ORDER BY 1
        LIMIT 500
    ) AS names
) AS f
WHERE own.rolname = session_user
