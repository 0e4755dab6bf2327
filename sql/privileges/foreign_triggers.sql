-- Would DDL in this session run an event trigger of a role that is neither a superuser nor the one that logged in? One row.
-- Since PostgreSQL 17, no event trigger runs while event_triggers is off.
-- As sql/inspect/database_installation.sql.
SELECT coalesce(current_setting('event_triggers', true), 'on') <> 'off' AND EXISTS (
    SELECT
    FROM pg_catalog.pg_event_trigger AS t
    JOIN pg_catalog.pg_proc AS p ON p.oid = t.evtfoid
    CROSS JOIN LATERAL (VALUES (t.evtowner), (p.proowner)) AS had (owner)
    JOIN pg_catalog.pg_roles AS r ON r.oid = had.owner
    WHERE t.evtenabled <> 'D' AND NOT (r.rolsuper OR r.rolname = session_user)
) AS foreign_triggers
