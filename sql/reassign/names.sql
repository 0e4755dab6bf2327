-- Does the role still have its name, and which oid has the new owner?
-- $1 oid role   $2 name its name   $3 name new owner
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = $1::oid AND r.rolname = $2::name) AS is_named,
    (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = $3::name) AS new_owner
