-- $1 interval retention   $2 bigint rows   $3 text cluster
SELECT pgrole.prune_history($1, $2, $3)
