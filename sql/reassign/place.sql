-- Which server and database is this connection to, and as which role does it act? By oid, which does not depend on the
-- encoding of a database.
SELECT
    (SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s) AS system_identifier,
    pg_catalog.pg_postmaster_start_time() AS started_at,
    (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) AS acting_role,
    (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()) AS database
