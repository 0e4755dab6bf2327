-- What may the controller's role do here? No row if it does not exist.
-- Names are sent as bytes: another database may have written them in its encoding.
-- $1 bytea the role's name; NULL: the role that logged in
SELECT
    textsend(own.rolname::text) AS name,
    own.rolsuper AS superuser, own.rolcreaterole AS createrole, own.rolcanlogin AS login, own.rolconnlimit AS connection_limit,
    -- as text: infinity is no timestamp for a client
    coalesce(own.rolvaliduntil < clock_timestamp() + interval '14 days', false) AS expires_soon,
    pg_catalog.pg_has_role(own.oid, 'pg_monitor'::regrole, 'USAGE') AS monitors,
    pg_catalog.has_database_privilege(own.oid, d.oid, 'CREATE') AS creates,
    coalesce(n.nspowner = own.oid OR own.rolsuper, false) AS owns,
    coalesce(
        pg_catalog.has_schema_privilege(own.oid, n.oid, 'USAGE')
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_class AS c, pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
            WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
              AND NOT pg_catalog.has_table_privilege(own.oid, c.oid, p.privilege)
        )
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_proc AS f
            WHERE f.pronamespace = n.oid AND NOT pg_catalog.has_function_privilege(own.oid, f.oid, 'EXECUTE')
        ),
        false
    ) AS uses,
    pg_catalog.has_column_privilege(own.oid, 'pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege(own.oid, 'pg_catalog.pg_authid', 'xmin', 'SELECT') AS sees_versions,
    pg_catalog.has_column_privilege(own.oid, 'pg_catalog.pg_authid', 'oid', 'SELECT')
        AND pg_catalog.has_column_privilege(own.oid, 'pg_catalog.pg_authid', 'rolpassword', 'SELECT') AS sees_passwords,
    pg_catalog.has_function_privilege(own.oid, 'pg_catalog.pg_control_system()', 'EXECUTE') AS sees_system,
    pg_catalog.has_function_privilege(own.oid, 'pg_catalog.pg_read_binary_file(text, bigint, bigint, boolean)', 'EXECUTE')
        AND pg_catalog.has_function_privilege(own.oid, 'pg_catalog.pg_stat_file(text, boolean)', 'EXECUTE')
        AND pg_catalog.has_function_privilege(own.oid, 'pg_catalog.pg_current_logfile(text)', 'EXECUTE') AS reads_logs,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_roles AS r
        WHERE r.rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'neon_superuser', 'azure_pg_admin', 'alloydbsuperuser')
          AND pg_catalog.pg_has_role(own.oid, r.oid, 'MEMBER')
    ) AS administers,
    -- null: the language does not exist
    (
        SELECT pg_catalog.has_language_privilege(own.oid, l.oid, 'USAGE')
        FROM pg_catalog.pg_language AS l
        WHERE l.lanname = 'plpgsql'
    ) AS language
FROM pg_catalog.pg_roles AS own
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'pgrole'
WHERE CASE WHEN $1::bytea IS NULL THEN own.rolname = session_user ELSE textsend(own.rolname::text) = $1::bytea END
