-- Which roles exist? One row for each, at most 100,000.
SELECT r.oid, textsend(r.rolname::text) AS name FROM pg_catalog.pg_roles AS r ORDER BY r.rolname LIMIT 100000
