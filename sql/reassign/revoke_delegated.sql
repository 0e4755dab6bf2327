-- Revokes privileges that roles other than an object's owner granted to the role in this database, or on shared objects. DROP
-- OWNED leaves them: it revokes as the owner. Setting of the session: pgrole.role, its oid.
-- REVOKE acts for one grantor, so this becomes each of them; fails with PGR08 if it may not, and with PGR09 if the grantor is a
-- superuser now, in whose name PostgreSQL revokes nothing. A grantor without USAGE on a schema gets that meanwhile, and one that
-- lost the grant option for columns gets that (sql/privileges/lost_options.sql).
-- A superuser locks the role's name first; other roles resolve it again at the end. If a name has changed meanwhile, that of a
-- grantor included, this fails with PGR03, and nothing is changed.
DO $revoke_delegated$
DECLARE
    role_oid CONSTANT oid := current_setting('pgrole.role')::oid;
    acting CONSTANT name := current_user;
    granted CONSTANT text := $granted$
        WITH held AS (
            SELECT s.classid, s.objid, s.objsubid
            FROM pg_catalog.pg_shdepend AS s
            WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = $1 AND s.deptype = 'a'
              AND s.dbid IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()))
        ), objects AS (
            SELECT c.relacl AS acl, c.relowner AS owner, '' AS part, ARRAY[n.oid] AS schemas,
                   format('%s %I.%I', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, n.nspname, c.relname) AS object
            FROM held AS h
            JOIN pg_catalog.pg_class AS c ON h.classid = 'pg_catalog.pg_class'::regclass AND c.oid = h.objid AND h.objsubid = 0
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            UNION ALL
            SELECT a.attacl, c.relowner, format(' (%I)', a.attname), ARRAY[n.oid], format('TABLE %I.%I', n.nspname, c.relname)
            FROM held AS h
            JOIN pg_catalog.pg_attribute AS a
                ON h.classid = 'pg_catalog.pg_class'::regclass AND a.attrelid = h.objid AND a.attnum = h.objsubid
            JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE h.objsubid <> 0
            UNION ALL
            -- with IN, these are the input arguments: without, a procedure with the same OUT arguments would be meant as well
            SELECT p.proacl, p.proowner, '', n.oid || ARRAY(
                SELECT t.typnamespace FROM pg_catalog.pg_type AS t WHERE t.oid = ANY (p.proargtypes)
            ), format('ROUTINE %I.%I(%s)', n.nspname, p.proname, (
                SELECT string_agg('IN ' || format_type(t.type, NULL), ', ' ORDER BY t.position)
                FROM unnest(p.proargtypes) WITH ORDINALITY AS t (type, position)
            ))
            FROM held AS h
            JOIN pg_catalog.pg_proc AS p ON h.classid = 'pg_catalog.pg_proc'::regclass AND p.oid = h.objid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
            UNION ALL
            SELECT n.nspacl, n.nspowner, '', '{}', format('SCHEMA %I', n.nspname)
            FROM held AS h
            JOIN pg_catalog.pg_namespace AS n ON h.classid = 'pg_catalog.pg_namespace'::regclass AND n.oid = h.objid
            UNION ALL
            SELECT t.typacl, t.typowner, '', ARRAY[t.typnamespace], format('TYPE %s', format_type(t.oid, NULL))
            FROM held AS h
            JOIN pg_catalog.pg_type AS t ON h.classid = 'pg_catalog.pg_type'::regclass AND t.oid = h.objid
            UNION ALL
            SELECT l.lanacl, l.lanowner, '', '{}', format('LANGUAGE %I', l.lanname)
            FROM held AS h
            JOIN pg_catalog.pg_language AS l ON h.classid = 'pg_catalog.pg_language'::regclass AND l.oid = h.objid
            UNION ALL
            SELECT w.fdwacl, w.fdwowner, '', '{}', format('FOREIGN DATA WRAPPER %I', w.fdwname)
            FROM held AS h
            JOIN pg_catalog.pg_foreign_data_wrapper AS w
                ON h.classid = 'pg_catalog.pg_foreign_data_wrapper'::regclass AND w.oid = h.objid
            UNION ALL
            SELECT f.srvacl, f.srvowner, '', '{}', format('FOREIGN SERVER %I', f.srvname)
            FROM held AS h
            JOIN pg_catalog.pg_foreign_server AS f
                ON h.classid = 'pg_catalog.pg_foreign_server'::regclass AND f.oid = h.objid
            UNION ALL
            SELECT m.lomacl, m.lomowner, '', '{}', format('LARGE OBJECT %s', m.oid)
            FROM held AS h
            JOIN pg_catalog.pg_largeobject_metadata AS m
                ON h.classid = 'pg_catalog.pg_largeobject'::regclass AND m.oid = h.objid
            UNION ALL
            SELECT d.datacl, d.datdba, '', '{}', format('DATABASE %I', d.datname)
            FROM held AS h
            JOIN pg_catalog.pg_database AS d ON h.classid = 'pg_catalog.pg_database'::regclass AND d.oid = h.objid
            UNION ALL
            SELECT b.spcacl, b.spcowner, '', '{}', format('TABLESPACE %I', b.spcname)
            FROM held AS h
            JOIN pg_catalog.pg_tablespace AS b ON h.classid = 'pg_catalog.pg_tablespace'::regclass AND b.oid = h.objid
            /* parameters */
        ), lost AS (
            SELECT
                format('TABLE %I.%I', n.nspname, c.relname) AS object, format(' (%I)', a.attname) AS part,
                e.grantor, e.privilege_type, EXISTS (
                    SELECT FROM aclexplode(a.attacl || '{}'::aclitem[]) AS k
                    WHERE (k.grantee, k.grantor, k.privilege_type) = (e.grantor, c.relowner, e.privilege_type)
                ) AS kept
            FROM held AS h
            JOIN pg_catalog.pg_attribute AS a
                ON h.classid = 'pg_catalog.pg_class'::regclass AND a.attrelid = h.objid AND a.attnum = h.objsubid
                AND a.attacl IS NOT NULL
            JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            CROSS JOIN LATERAL aclexplode(a.attacl || '{}'::aclitem[]) AS e
            WHERE h.objsubid <> 0 AND e.grantee = $1 AND NOT EXISTS (
                SELECT FROM aclexplode(coalesce(c.relacl, '{}') || a.attacl) AS w
                WHERE (w.grantee, w.privilege_type) = (e.grantor, e.privilege_type) AND w.is_grantable
            )
        )
        -- Not ALL, which fails if the grantor holds nothing else on some column. What was granted without grant option comes first:
        -- with a grant option, CASCADE may take everything from another of these grantors, who then may not even revoke.
        SELECT
            o.object, o.schemas, g.oid AS grantor_oid, g.rolname AS grantor, g.rolsuper AS is_superuser,
            string_agg(e.privilege_type || o.part, ', ') AS privileges,
            string_agg(e.privilege_type || o.part, ', ') FILTER (WHERE NOT l.kept) AS lent,
            string_agg(e.privilege_type || o.part, ', ') FILTER (WHERE l.kept) AS lent_option
        FROM objects AS o
        CROSS JOIN LATERAL aclexplode(o.acl || '{}'::aclitem[]) AS e
        LEFT JOIN lost AS l
            ON (l.object, l.part, l.grantor, l.privilege_type) = (o.object, o.part, e.grantor, e.privilege_type)
        JOIN pg_catalog.pg_roles AS g ON g.oid = e.grantor
        WHERE o.acl IS NOT NULL AND e.grantee = $1 AND e.grantor <> o.owner
        GROUP BY o.object, o.schemas, g.oid, g.rolname, g.rolsuper, e.is_grantable
        ORDER BY e.is_grantable, o.object, g.rolname
    $granted$;
    -- since PostgreSQL 15
    parameters CONSTANT text := $parameters$
            UNION ALL
            SELECT p.paracl, 10, '', '{}', format('PARAMETER %s', (
                SELECT string_agg(quote_ident(t.part), '.' ORDER BY t.position)
                FROM string_to_table(p.parname, '.') WITH ORDINALITY AS t (part, position)
            ))
            FROM held AS h
            JOIN pg_catalog.pg_parameter_acl AS p
                ON h.classid = 'pg_catalog.pg_parameter_acl'::regclass AND p.oid = h.objid
    $parameters$;
    -- by oid, whatever the roles are called
    schema_acls CONSTANT text := $schema_acls$
        SELECT string_agg(format('%s %s', n.oid, e), ' ' ORDER BY n.oid, e.grantor, e.grantee, e.privilege_type)
        FROM pg_catalog.pg_namespace AS n
        CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner)) || '{}'::aclitem[]) AS e
        WHERE n.oid = ANY ($1)
    $schema_acls$;
    column_acls CONSTANT text := $column_acls$
        SELECT string_agg(format('%s %s', a.attnum, e), ' ' ORDER BY a.attnum, e.grantor, e.grantee, e.privilege_type)
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attacl IS NOT NULL
        CROSS JOIN LATERAL aclexplode(a.attacl || '{}'::aclitem[]) AS e
        JOIN pg_catalog.pg_roles AS r ON r.oid = e.grantor
        WHERE c.oid = $1::regclass AND (e.grantor = c.relowner OR r.rolname = current_user)
    $column_acls$;
    version CONSTANT int := current_setting('server_version_num')::int;
    query text := granted;
    role_name name;
    item record;
    closed text;
    acls_before text;
    acls_after text;
    lent text;
    columns_before text;
    columns_after text;
    is_left boolean;
BEGIN
    IF has_table_privilege('pg_catalog.pg_authid', 'UPDATE') THEN
        PERFORM FROM pg_catalog.pg_authid AS a WHERE a.oid = role_oid FOR KEY SHARE;
    END IF;
    IF version >= 150000 THEN
        query := replace(granted, '/* parameters */', parameters);
    END IF;
    SELECT r.rolname INTO role_name FROM pg_catalog.pg_roles AS r WHERE r.oid = role_oid;
    IF role_name IS NULL THEN
        RAISE EXCEPTION 'the role was dropped' USING ERRCODE = 'PGR01';
    END IF;
    FOR item IN EXECUTE query USING role_oid LOOP
        IF item.is_superuser THEN
            RAISE EXCEPTION 'role "%", a superuser now, granted privileges on % to it before', item.grantor, item.object
                USING ERRCODE = 'PGR09';
        END IF;
        IF NOT pg_has_role(acting, item.grantor, CASE WHEN version >= 160000 THEN 'SET' ELSE 'MEMBER' END) THEN
            RAISE EXCEPTION 'role "%" granted privileges on % to it: only the grantor can revoke them, or a member of it',
                item.grantor, item.object USING ERRCODE = 'PGR08';
        END IF;
        SELECT string_agg(format('%I', n.nspname), ', ') INTO closed
        FROM pg_catalog.pg_namespace AS n
        WHERE n.oid = ANY (item.schemas) AND NOT has_schema_privilege(item.grantor_oid, n.oid, 'USAGE');
        IF closed IS NOT NULL THEN
            EXECUTE schema_acls INTO acls_before USING item.schemas;
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', closed, item.grantor);
        END IF;
        lent := concat_ws(', ', item.lent, item.lent_option);
        IF lent <> '' THEN
            EXECUTE column_acls INTO columns_before USING substr(item.object, 7);
            EXECUTE format('GRANT %s ON %s TO %I WITH GRANT OPTION', lent, item.object, item.grantor);
        END IF;
        EXECUTE format('SET LOCAL ROLE %I', item.grantor);
        EXECUTE format('REVOKE %s ON %s FROM %I CASCADE', item.privileges, item.object, role_name);
        EXECUTE format('SET LOCAL ROLE %I', acting);
        IF lent <> '' THEN
            IF item.lent IS NOT NULL THEN
                EXECUTE format('REVOKE %s ON %s FROM %I', item.lent, item.object, item.grantor);
            END IF;
            IF item.lent_option IS NOT NULL THEN
                EXECUTE format('REVOKE GRANT OPTION FOR %s ON %s FROM %I', item.lent_option, item.object, item.grantor);
            END IF;
            EXECUTE column_acls INTO columns_after USING substr(item.object, 7);
            IF columns_after IS DISTINCT FROM columns_before THEN
                RAISE EXCEPTION 'a role was renamed in the meantime' USING ERRCODE = 'PGR03';
            END IF;
        END IF;
        IF closed IS NOT NULL THEN
            EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', closed, item.grantor);
            EXECUTE schema_acls INTO acls_after USING item.schemas;
            IF acls_after IS DISTINCT FROM acls_before THEN
                RAISE EXCEPTION 'a role was renamed in the meantime' USING ERRCODE = 'PGR03';
            END IF;
        END IF;
    END LOOP;
    EXECUTE format('SELECT EXISTS (%s)', query) INTO is_left USING role_oid;
    IF is_left OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = role_oid AND r.rolname = role_name) THEN
        RAISE EXCEPTION 'an object or a role was renamed in the meantime' USING ERRCODE = 'PGR03';
    END IF;
END
$revoke_delegated$
