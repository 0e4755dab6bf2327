-- In which of these databases does one of these roles own something: the database, or anything in it? A role can own millions
-- of objects: of one that owns many, it may be any database.
-- $1 oid[] roles   $2 name[] databases
WITH owned AS MATERIALIZED (
    SELECT CASE WHEN s.dbid = 0 THEN s.objid ELSE s.dbid END AS database
    FROM pg_catalog.pg_shdepend AS s
    WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = ANY ($1::oid[]) AND s.deptype = 'o'
      AND (s.dbid <> 0 OR s.classid = 'pg_catalog.pg_database'::regclass)
    LIMIT 10000
)
SELECT d.datname::text AS database
FROM pg_catalog.pg_database AS d
WHERE d.datname = ANY ($2::name[])
  AND (d.oid = ANY (ARRAY(SELECT DISTINCT o.database FROM owned AS o)) OR (SELECT count(*) FROM owned) = 10000)
