-- May what is in schema pgrole be called? The first statement of a transaction: until it ends, nobody drops the schema.
-- Fails with PGR02 when the schema, a routine in it, or the right to create in it belongs to anybody but our role and
-- superusers, or we act as somebody else than who logged in; with 3F000 or 42P01 when it is not there. The session's search_path must be "pg_catalog, pg_temp".
DO $guard$
BEGIN
    -- its owner is not known yet: to lock it runs nothing of it
    LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE;
    -- as it mostly is; the text of a DO is planned anew each time, what it does not reach is not
    IF NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n
        WHERE n.nspname = 'pgrole' AND pg_catalog.pg_get_userbyid(n.nspowner) = session_user
          AND n.nspacl = pg_catalog.acldefault('n', n.nspowner)
    ) OR current_user <> session_user THEN
        IF current_user <> session_user OR EXISTS (
            SELECT
            FROM pg_catalog.pg_namespace AS n
            CROSS JOIN LATERAL (
                SELECT n.nspowner
                UNION ALL
                SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) AS a WHERE a.privilege_type = 'CREATE'
                UNION ALL
                SELECT p.proowner FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid
            ) AS had (owner)
            LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = had.owner
            WHERE n.nspname = 'pgrole' AND (r.rolsuper OR r.rolname = session_user) IS NOT TRUE
        ) THEN
            RAISE EXCEPTION 'schema pgrole is not trusted, and nothing in it is called' USING ERRCODE = 'PGR02';
        END IF;
    END IF;
END
$guard$
