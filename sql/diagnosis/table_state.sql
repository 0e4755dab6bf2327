-- May this login read a table of schema pgrole, and does reading it run no code of others? One row.
-- Inert: tables without row security and rules, whose indexes and constraints use no function, operator or type that was created
-- after initdb. Views of the schema are not asked: a view runs its owner's functions with the reader's rights.
-- $1 text table
WITH root AS (
    SELECT c.oid, c.relkind
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pgrole' AND c.relname = $1::text::name
),
part AS (
    SELECT r.oid FROM root AS r
    UNION ALL
    SELECT i.inhrelid FROM root AS r JOIN pg_catalog.pg_inherits AS i ON i.inhparent = r.oid
),
thing (class, oid) AS (
    SELECT 'pg_catalog.pg_class'::regclass::oid, p.oid FROM part AS p
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass::oid, i.indexrelid
    FROM part AS p JOIN pg_catalog.pg_index AS i ON i.indrelid = p.oid
    UNION ALL
    SELECT 'pg_catalog.pg_constraint'::regclass::oid, c.oid FROM part AS p JOIN pg_catalog.pg_constraint AS c ON c.conrelid = p.oid
)
SELECT
    pg_catalog.to_regnamespace('pgrole') IS NOT NULL AS present,
    EXISTS (SELECT FROM root) AS kept,
    NOT EXISTS (
            SELECT
            FROM part AS p JOIN pg_catalog.pg_class AS c ON c.oid = p.oid
            WHERE c.relkind NOT IN ('r', 'p') OR c.relrowsecurity OR c.relhasrules OR (c.relhassubclass AND c.relkind = 'r')
        )
        AND NOT EXISTS (
            SELECT
            FROM part AS p JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.oid
            WHERE a.atttypid >= 16384
        )
        AND NOT EXISTS (
            SELECT
            FROM thing AS t
            JOIN pg_catalog.pg_depend AS d ON (d.classid, d.objid) = (t.class, t.oid)
            WHERE d.refobjid >= 16384
              AND d.refclassid IN (
                  'pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass, 'pg_catalog.pg_type'::regclass,
                  'pg_catalog.pg_opclass'::regclass
              )
        ) AS inert,
    coalesce(
        pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('pgrole')::oid, 'USAGE')
        AND (SELECT bool_and(pg_catalog.has_table_privilege(r.oid, 'SELECT')) FROM root AS r),
        false
    ) AS readable,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgrole' AND c.relname = 'claim'
    ) AS home,
    textsend(pg_catalog.current_database()::text) AS database,
    textsend(session_user::text) AS login
