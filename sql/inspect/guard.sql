-- Can schema pgrole be trusted? The first statement of a transaction: no one can drop the schema until the transaction ends.
-- Fails with PGR02 if a role other than the controller's and superusers owns the schema or a routine in it or can create
-- objects in it, or if the session acts as another role than it logged in as; with 3F000 or 42P01 if the schema does not exist.
-- The session's search_path must be "pg_catalog, pg_temp".
-- The relation usual_schema is usual_schema.sql.
DO $guard$
BEGIN
    -- its owner is not verified yet, but locking runs none of its code
    LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE;
    -- every DO is planned again, but only the statements that it reaches
    IF NOT (SELECT u.usual FROM usual_schema AS u) THEN
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
