-- May this session read a table of schema pgrole, and does reading it run no code of others? One row, also if the schema does not
-- exist. The only answer to that question: for every command that reads the schema without sql/inspect/guard.sql.
-- Safe: schema, table and partitions belong to trusted roles, and they are inert.
-- Trusted: an owner could change the table, or put another one in its place, right after this question. So a superuser trusts
-- superusers and itself; another login trusts roles with CREATEROLE as well, as the controller's role has.
-- Inert: tables without row security and rules, whose columns, partition keys, indexes, statistics and constraints use no function,
-- operator or type that was created after initdb. PostgreSQL evaluates their expressions as the reader, when it plans the query.
-- Lock the table before asking (postgres/trusted_schema.py): then it stays this table until the transaction ends.
-- $1 text the name of the table
WITH RECURSIVE schema AS (
    SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole'
),
root AS (
    SELECT c.oid
    FROM schema AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
    WHERE c.relname = $1::text
),
part AS (
    SELECT r.oid FROM root AS r
    UNION
    SELECT i.inhrelid FROM part AS p JOIN pg_catalog.pg_inherits AS i ON i.inhparent = p.oid
),
login AS (
    SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user
),
trusted AS (
    SELECT r.oid
    FROM pg_catalog.pg_roles AS r CROSS JOIN login AS l
    WHERE r.rolsuper OR r.oid = l.oid OR (r.rolcreaterole AND NOT l.rolsuper)
),
thing (class, oid) AS (
    -- of a partition key
    SELECT 'pg_catalog.pg_class'::regclass::oid, p.oid FROM part AS p
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass::oid, i.indexrelid
    FROM part AS p JOIN pg_catalog.pg_index AS i ON i.indrelid = p.oid
    UNION ALL
    SELECT 'pg_catalog.pg_constraint'::regclass::oid, c.oid
    FROM part AS p JOIN pg_catalog.pg_constraint AS c ON c.conrelid = p.oid
    UNION ALL
    SELECT 'pg_catalog.pg_statistic_ext'::regclass::oid, e.oid
    FROM part AS p JOIN pg_catalog.pg_statistic_ext AS e ON e.stxrelid = p.oid
)
SELECT
    EXISTS (SELECT FROM schema) AS present,
    EXISTS (SELECT FROM root) AS has_table,
    coalesce(
        (
            SELECT
                pg_catalog.has_schema_privilege(s.oid, 'USAGE') AND pg_catalog.has_table_privilege(r.oid, 'SELECT')
            FROM schema AS s CROSS JOIN root AS r
        ),
        false
    ) AS readable,
    EXISTS (SELECT FROM root)
        AND NOT EXISTS (
            SELECT FROM schema AS s WHERE s.nspowner NOT IN (SELECT t.oid FROM trusted AS t)
        )
        AND NOT EXISTS (
            SELECT
            FROM part AS p JOIN pg_catalog.pg_class AS c ON c.oid = p.oid
            WHERE c.relowner NOT IN (SELECT t.oid FROM trusted AS t)
               OR c.relkind NOT IN ('r', 'p') OR c.relrowsecurity OR c.relhasrules
               OR (c.relhassubclass AND c.relkind = 'r')
        )
        AND NOT EXISTS (
            SELECT
            FROM part AS p JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.oid
            WHERE a.atttypid >= 16384 OR a.attgenerated <> ''
        )
        AND NOT EXISTS (
            SELECT
            FROM thing AS t
            JOIN pg_catalog.pg_depend AS d ON (d.classid, d.objid) = (t.class, t.oid)
            WHERE d.refobjid >= 16384
              AND d.refclassid IN (
                  'pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass, 'pg_catalog.pg_type'::regclass,
                  'pg_catalog.pg_opclass'::regclass, 'pg_catalog.pg_opfamily'::regclass, 'pg_catalog.pg_am'::regclass
              )
        ) AS safe,
    EXISTS (
        SELECT
        FROM root AS r JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid
        WHERE a.attname = 'privileges' AND NOT a.attisdropped
    ) AS keeps_privileges
