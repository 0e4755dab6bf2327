-- In which databases does each of these roles have privileges: on the database, or on anything in it? One row for each role
-- and database. What it owns does not count. pg_shdepend is shared, and has no rows of roles that initdb made.
-- $1 oid[] roles   $2 name[] databases, one for each role
SELECT a.place, d.datname::text AS database
FROM unnest($1::oid[], $2::name[]) WITH ORDINALITY AS a (role, database, place)
JOIN pg_catalog.pg_database AS d ON d.datname = a.database
WHERE EXISTS (
    SELECT
    FROM pg_catalog.pg_shdepend AS s
    WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = a.role AND s.deptype = 'a'
      AND (s.dbid = d.oid OR (s.dbid = 0 AND s.classid = 'pg_catalog.pg_database'::regclass AND s.objid = d.oid))
)
