-- Only the owner and superusers have privileges here, whatever the default privileges of this database are.
REVOKE ALL ON ALL TABLES IN SCHEMA pgrole FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA pgrole FROM PUBLIC;

-- Those of roles that default privileges name; pg_monitor has its own from above.
DO $$
DECLARE
    other name;
BEGIN
    FOR other IN
        SELECT DISTINCT r.rolname
        FROM pg_namespace AS n
        CROSS JOIN LATERAL (
            SELECT n.nspacl
            UNION ALL SELECT c.relacl FROM pg_class AS c WHERE c.relnamespace = n.oid
            UNION ALL SELECT p.proacl FROM pg_proc AS p WHERE p.pronamespace = n.oid
        ) AS had (acl)
        CROSS JOIN LATERAL aclexplode(had.acl) AS a
        JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE n.nspname = 'pgrole' AND r.oid <> n.nspowner AND r.rolname <> 'pg_monitor' AND EXISTS (
            SELECT
            FROM pg_default_acl AS d CROSS JOIN LATERAL aclexplode(d.defaclacl) AS e
            WHERE d.defaclrole = n.nspowner AND e.grantee = r.oid
        )
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA pgrole FROM %I', other);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA pgrole FROM %I', other);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgrole FROM %I', other);
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA pgrole FROM %I', other);
    END LOOP;
END
$$;

-- In a home database of an older version, the rest must not be taken for this one.
DO $$
BEGIN
    IF to_regclass('pgrole.claim') IS NOT NULL AND to_regclass('pgrole.database_state') IS NULL THEN
        RAISE EXCEPTION 'this is the home database of an older schema pgrole' USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Run the output of `pgrole-controller sql` here first.';
    END IF;
END
$$;

INSERT INTO pgrole.installation AS i (version, parts)
SELECT 4, 1
    + (SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = n.oid)
    + (SELECT count(*) FROM pg_proc AS p WHERE p.pronamespace = n.oid)
    + (SELECT count(*) FROM pg_operator AS o WHERE o.oprnamespace = n.oid)
FROM pg_namespace AS n
WHERE n.nspname = 'pgrole'
ON CONFLICT (singleton) DO UPDATE SET version = excluded.version, parts = excluded.parts
WHERE (i.version, i.parts) IS DISTINCT FROM (excluded.version, excluded.parts);
