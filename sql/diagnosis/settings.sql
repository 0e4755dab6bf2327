-- Which values do these settings have? Those that this login may not see have no row.
SELECT s.name, s.setting
FROM pg_catalog.pg_settings AS s
WHERE s.name IN (
    'password_encryption', 'max_prepared_transactions', 'log_statement', 'logging_collector', 'log_destination',
    'shared_preload_libraries', 'pgaudit.log', 'track_activity_query_size', 'session_replication_role', 'fsync', 'ssl'
)
