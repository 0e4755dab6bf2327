-- Which parts of schema pgrole exist, and does an untrusted role own any of them?
-- Trusted: superusers, and the controller's role. Names are sent as bytes: another database may have written them in its
-- encoding.
-- $1 bytea the name of the controller's role; NULL: the role that logged in, which is also the acting role
--    (sql/inspect/connection.sql)
WITH trusted AS (
    SELECT r.oid
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolsuper
       OR CASE WHEN $1::bytea IS NULL THEN r.rolname = session_user ELSE textsend(r.rolname::text) = $1::bytea END
),
schema AS (
    SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole'
),
-- No index leads from a schema to its relations and routines: reading pg_class as a whole takes 10 ms for 50,000 tables.
-- OFFSET 0: each row is found by index, whatever the statistics say.
-- `extended`: part of an extension. Any role that may create in the database can put a trusted one into any schema, where a
-- superuser owns its objects; they are no parts of ours.
member AS MATERIALIZED (
    SELECT
        d.classid, d.objid,
        (
            SELECT true
            FROM pg_catalog.pg_depend AS e
            WHERE e.classid = d.classid AND e.objid = d.objid AND e.deptype = 'e'
            LIMIT 1
        ) IS NOT NULL AS extended
    FROM pg_catalog.pg_depend AS d
    WHERE d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid = (SELECT s.oid FROM schema AS s)
),
relation AS MATERIALIZED (
    SELECT c.*, f.extended
    FROM (
        SELECT m.objid AS oid, m.extended FROM member AS m WHERE m.classid = 'pg_catalog.pg_class'::regclass
        UNION ALL
        SELECT i.indexrelid, m.extended
        FROM member AS m
        CROSS JOIN LATERAL (SELECT x.indexrelid FROM pg_catalog.pg_index AS x WHERE x.indrelid = m.objid OFFSET 0) AS i
        WHERE m.classid = 'pg_catalog.pg_class'::regclass
        UNION ALL
        SELECT t.typrelid, m.extended
        FROM member AS m
        CROSS JOIN LATERAL (SELECT x.typrelid FROM pg_catalog.pg_type AS x WHERE x.oid = m.objid OFFSET 0) AS t
        WHERE m.classid = 'pg_catalog.pg_type'::regclass
    ) AS f
    CROSS JOIN LATERAL (
        SELECT x.oid, x.relname, x.relowner FROM pg_catalog.pg_class AS x WHERE x.oid = f.oid OFFSET 0
    ) AS c
),
part AS (
    SELECT 'schema pgrole' AS what, s.nspowner AS owner, false AS extended FROM schema AS s
    UNION ALL
    SELECT 'relation pgrole.' || c.relname, c.relowner, c.extended FROM relation AS c
    UNION ALL
    SELECT 'routine pgrole.' || p.proname, p.proowner, m.extended
    FROM member AS m
    CROSS JOIN LATERAL (SELECT x.proname, x.proowner FROM pg_catalog.pg_proc AS x WHERE x.oid = m.objid OFFSET 0) AS p
    WHERE m.classid = 'pg_catalog.pg_proc'::regclass
    UNION ALL
    -- the others are those of relations, and arrays
    SELECT 'type pgrole.' || t.typname, t.typowner, m.extended
    FROM member AS m
    CROSS JOIN LATERAL (SELECT x.typname, x.typowner FROM pg_catalog.pg_type AS x WHERE x.oid = m.objid OFFSET 0) AS t
    WHERE m.classid = 'pg_catalog.pg_type'::regclass
    UNION ALL
    SELECT 'operator pgrole.' || o.oprname, o.oprowner, m.extended
    FROM member AS m
    CROSS JOIN LATERAL (SELECT x.oprname, x.oprowner FROM pg_catalog.pg_operator AS x WHERE x.oid = m.objid OFFSET 0) AS o
    WHERE m.classid = 'pg_catalog.pg_operator'::regclass
    UNION ALL
    SELECT 'right to CREATE in schema pgrole', a.grantee, false
    FROM schema AS s, pg_catalog.aclexplode(s.nspacl) AS a
    WHERE a.privilege_type = 'CREATE'
)
SELECT
    EXISTS (SELECT FROM schema) AS present,
    (
        SELECT count(*)::int
        FROM part AS p
        WHERE NOT p.extended AND p.what NOT LIKE 'type %' AND p.what NOT LIKE 'right %'
    ) AS parts,
    -- not to_regclass, which fails without USAGE on the schema
    (
        SELECT count(*) = 2
        FROM relation AS c
        WHERE c.relname IN ('installation', 'turn_to_look')
    ) AS versioned,
    -- the home database has claims; the others have only what each database with managed privileges has
    EXISTS (
        SELECT FROM relation AS c WHERE c.relname = 'claim'
    ) AS home,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create,
    -- at most 5; any new table is published at once, and the first row in it stops a subscriber without such a table
    ARRAY(
        SELECT textsend(format('%I', b.pubname))
        FROM pg_catalog.pg_publication AS b
        WHERE b.puballtables
        ORDER BY b.pubname
        LIMIT 5
    ) AS publications,
    textsend(
        format('GRANT CREATE ON DATABASE %I TO %I', pg_catalog.current_database(), session_user)
    ) AS grant_to_create,
    -- changes are announced by triggers, which must also fire in sessions with session_replication_role = replica
    NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_trigger AS t
        WHERE t.tgrelid = ANY (ARRAY(SELECT c.oid FROM relation AS c WHERE NOT c.extended))
          AND t.tgenabled <> 'A'
    ) AND (
        -- of the home database: those of sql/install
        SELECT count(DISTINCT c.oid) = 0 OR count(t.oid) = 6
        FROM relation AS c
        LEFT JOIN pg_catalog.pg_trigger AS t
            ON t.tgrelid = c.oid
            AND t.tgname IN ('announce_insert', 'announce_update', 'announce_delete', 'announce_truncate')
        WHERE NOT c.extended AND c.relname IN ('claim', 'role_state')
    ) AS armed,
    NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_trigger AS t
        WHERE t.tgrelid = ANY (ARRAY(SELECT c.oid FROM relation AS c WHERE NOT c.extended))
          AND t.tgenabled NOT IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)
    ) AS announcing,
    -- also the database's owner, who can grant the privilege to itself
    EXISTS (
        SELECT
        FROM pg_catalog.pg_database AS d
        CROSS JOIN LATERAL (
            SELECT d.datdba
            UNION ALL
            SELECT a.grantee FROM pg_catalog.aclexplode(d.datacl) AS a WHERE a.privilege_type = 'CREATE'
        ) AS may (create_it)
        WHERE d.datname = pg_catalog.current_database()
          AND may.create_it NOT IN (SELECT t.oid FROM trusted AS t)
    ) AS others_may_create,
    (
        SELECT string_agg(f.part, ', '::bytea ORDER BY f.part)
        FROM (
            SELECT textsend(format('%s (%s)', p.what, coalesce(r.rolname, 'PUBLIC'))) AS part
            FROM part AS p LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = p.owner
            WHERE p.owner NOT IN (SELECT t.oid FROM trusted AS t)
            ORDER BY 1
            LIMIT 5
        ) AS f
    ) AS foreign_parts
