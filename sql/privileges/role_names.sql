-- What are these roles called? One row for each that exists. $1 oid[] roles
SELECT r.oid, textsend(r.rolname::text) AS name FROM pg_catalog.pg_roles AS r WHERE r.oid = ANY ($1::oid[])
