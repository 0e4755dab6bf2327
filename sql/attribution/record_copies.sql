-- In the home database: records drifts of another one.
-- $1 bytea JSON
SELECT pgrole.record_drifts(convert_from($1, 'UTF8')::jsonb) FROM (SELECT pgrole.lock_changes()) AS locked
