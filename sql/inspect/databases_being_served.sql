-- Which of these databases have a session that keeps privileges, of this controller or another one? It may still commit what it
-- has begun. Any login can choose the name of such a session, but only a controller's role can change roles.
-- $1 name[] databases
SELECT DISTINCT a.datname::text AS database
FROM pg_catalog.pg_stat_activity AS a
JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
WHERE a.datname = ANY ($1::name[]) AND a.application_name = 'pgrole-controller database'
AND (r.rolsuper OR r.rolcreaterole)
