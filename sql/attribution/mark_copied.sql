-- In the database that has them: the home database has these drifts.
-- $1 bytea JSON
SELECT pgrole.mark_copied(convert_from($1, 'UTF8')::jsonb)
