-- A part of a log file. NULL if it is gone.
-- $1 text   $2 bigint offset   $3 bigint bytes
SELECT pg_read_binary_file($1, $2, least($3, 1000000), true) AS part
