-- How many bytes does a file that was written before have now? NULL if it is gone.
-- $1 text
SELECT s.size FROM pg_stat_file($1, true) AS s WHERE NOT s.isdir
