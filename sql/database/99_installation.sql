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

-- As sql/inspect/installation.sql: without the objects of extensions, which any role that may create in the database can put into
-- any schema.
INSERT INTO pgrole.installation AS i (version, parts)
SELECT 4, 1 + count(*)
FROM (
    SELECT
        CASE c.relkind WHEN 'c' THEN 'pg_type'::regclass ELSE 'pg_class'::regclass END AS catalog,
        CASE c.relkind WHEN 'c' THEN c.reltype ELSE coalesce(x.indrelid, c.oid) END AS object
    FROM pg_class AS c LEFT JOIN pg_index AS x ON x.indexrelid = c.oid
    WHERE c.relnamespace = 'pgrole'::regnamespace
    UNION ALL
    SELECT 'pg_proc'::regclass, p.oid FROM pg_proc AS p WHERE p.pronamespace = 'pgrole'::regnamespace
    UNION ALL
    SELECT 'pg_operator'::regclass, o.oid FROM pg_operator AS o WHERE o.oprnamespace = 'pgrole'::regnamespace
) AS part
WHERE NOT EXISTS (
    SELECT FROM pg_depend AS d WHERE d.classid = part.catalog AND d.objid = part.object AND d.deptype = 'e'
)
ON CONFLICT (singleton) DO UPDATE SET version = excluded.version, parts = excluded.parts
WHERE (i.version, i.parts) IS DISTINCT FROM (excluded.version, excluded.parts);
