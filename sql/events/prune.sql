-- Deletes old events: at most 10,000.
-- $1 interval age   $2 bigint rows
SELECT pgrole.prune_events($1, $2) AS pruned
