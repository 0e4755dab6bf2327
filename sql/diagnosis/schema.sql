-- Who owns schema pgrole, and has it a history? One row; `owner` is NULL if the schema does not exist. Its parts are read
-- by sql/inspect/installation.sql. Names are sent as bytes: another database may have written them.
WITH schema AS (
    SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgrole'
)
SELECT
    (SELECT textsend(r.rolname::text) FROM schema AS s JOIN pg_catalog.pg_roles AS r ON r.oid = s.nspowner) AS owner,
    EXISTS (
        SELECT FROM schema AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid WHERE c.relname = 'drift_history'
    ) AS keeps_history
