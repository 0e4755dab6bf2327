-- $1 interval retention   $2 bigint rows
SELECT pgrole.prune_history($1, $2)
