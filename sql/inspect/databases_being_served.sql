-- Which of these databases have a session that keeps privileges, of this controller or another one? It may still commit what it
-- has begun.
-- $1 name[] databases
SELECT DISTINCT a.datname::text AS database
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = ANY ($1::name[]) AND a.application_name = 'pgrole-controller database'
