-- Which event triggers would run another role's code with the controller's privileges? Names are sent as bytes.
-- Only superusers create event triggers, but the function can belong to another role, which can replace it at any time, even
-- if it is SECURITY DEFINER.
SELECT textsend(e.evtname::text) AS name
FROM pg_catalog.pg_event_trigger AS e
JOIN pg_catalog.pg_proc AS p ON p.oid = e.evtfoid
JOIN pg_catalog.pg_roles AS o ON o.oid = p.proowner
WHERE e.evtenabled <> 'D' AND e.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop')
  AND (e.evttags IS NULL OR e.evttags && ARRAY['ALTER TABLE', 'DROP OWNED', 'GRANT', 'REVOKE'])
  AND NOT o.rolsuper AND o.rolname <> current_user
  -- since PostgreSQL 17, a session can disable them
  AND current_setting('event_triggers', true) IS DISTINCT FROM 'off'
ORDER BY e.evtname
LIMIT 5
