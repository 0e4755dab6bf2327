-- Which drifts does the home database lack? At most $1, oldest first; NULL if none.
-- $1 integer
SELECT textsend(d.drifts::text) AS drifts, coalesce(jsonb_array_length(d.drifts), 0) AS count
FROM (SELECT pgrole.read_drifts_to_copy($1) AS drifts) AS d
