-- In which of these databases does a session exist that keeps privileges, of this controller or another one? What it has
-- begun, it may still commit.
-- $1 name[] databases
SELECT DISTINCT a.datname::text AS database
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = ANY ($1::name[]) AND a.application_name = 'pgrole-controller database'
