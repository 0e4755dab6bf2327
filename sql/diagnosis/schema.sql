-- Who owns schema pgrole and what is in it? One row; `owner` is NULL if the schema does not exist.
-- Trusted: superusers, and the controller's role. Names are sent as bytes: another database may have written them.
-- $1 bytea the name of the controller's role
WITH trusted AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper OR textsend(r.rolname::text) = $1::bytea
),
schema AS (
    SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole'
),
part AS (
    SELECT 'schema pgrole' AS what, s.nspowner AS owner FROM schema AS s
    UNION ALL
    SELECT 'relation pgrole.' || c.relname, c.relowner FROM schema AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
    UNION ALL
    SELECT 'routine pgrole.' || p.proname, p.proowner FROM schema AS s JOIN pg_catalog.pg_proc AS p ON p.pronamespace = s.oid
    UNION ALL
    SELECT 'right to CREATE in schema pgrole', a.grantee
    FROM schema AS s, pg_catalog.aclexplode(s.nspacl) AS a
    WHERE a.privilege_type = 'CREATE'
)
SELECT
    (SELECT textsend(r.rolname::text) FROM schema AS s JOIN pg_catalog.pg_roles AS r ON r.oid = s.nspowner) AS owner,
    EXISTS (
        SELECT FROM schema AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid WHERE c.relname = 'claim'
    ) AS home,
    EXISTS (
        SELECT FROM schema AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid WHERE c.relname = 'drift_history'
    ) AS keeps_history,
    (
        SELECT coalesce(string_agg(f.part, ', '::bytea ORDER BY f.part), '')
        FROM (
            SELECT textsend(format('%s (%s)', p.what, coalesce(r.rolname, 'PUBLIC'))) AS part
            FROM part AS p LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = p.owner
            WHERE p.owner NOT IN (SELECT t.oid FROM trusted AS t)
            ORDER BY 1
            LIMIT 5
        ) AS f
    ) AS foreign_parts
