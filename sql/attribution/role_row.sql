-- Which transaction wrote the row of a role? Only roles that may read pg_authid can ask.
-- $1 oid
SELECT a.xmin::text::bigint AS xmin FROM pg_catalog.pg_authid AS a WHERE a.oid = $1 AND a.xmin::text::bigint >= 3
