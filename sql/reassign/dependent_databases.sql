-- Which databases contain objects that depend on a role? The home database stands for shared objects.
-- $1 oid role
SELECT d.oid, textsend(d.datname::text) AS name, d.datallowconn AS connectable, d.datconnlimit = -2 AS invalid
FROM pg_catalog.pg_database AS d
WHERE d.oid IN (
    SELECT CASE s.dbid WHEN 0 THEN h.oid ELSE s.dbid END
    FROM pg_catalog.pg_shdepend AS s, pg_catalog.pg_database AS h
    WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = $1::oid AND h.datname = current_database()
)
ORDER BY d.oid
