-- Turns off event triggers in this session, if the role may. Since PostgreSQL 17. One row if it does.
-- Not where a setting of the role or the session has turned them off. So if this session's value comes from here, the value that
-- RESET would restore tells what the server's configuration says (sql/inspect/event_triggers_off.sql).
SELECT pg_catalog.set_config(s.name, 'off', false) AS setting
FROM pg_catalog.pg_settings AS s
WHERE s.name = 'event_triggers' AND (s.setting = 'on' OR s.source = 'configuration file')
  AND pg_catalog.has_parameter_privilege(s.name, 'SET')
