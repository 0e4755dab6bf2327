-- Which values do these settings have for new sessions? sql/inspect/connection.sql resets some in this one. Those that this login may
-- not see have no row.
-- `fixed`: the command line of the server sets it, so ALTER SYSTEM does not.
SELECT s.name, s.reset_val AS setting, s.source = 'command line' AS fixed
FROM pg_catalog.pg_settings AS s
WHERE s.name IN (
    'password_encryption', 'max_prepared_transactions', 'log_statement', 'logging_collector', 'log_destination',
    'shared_preload_libraries', 'pgaudit.log', 'track_activity_query_size', 'session_replication_role', 'fsync', 'ssl',
    'lc_messages', 'scram_iterations'
)
