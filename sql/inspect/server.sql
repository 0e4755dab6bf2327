-- Which server is this, and as which role does the session act? One row.
-- Names are sent as bytes: another database may have written them in its encoding.
SELECT
    current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS version_number,
    current_setting('server_encoding') AS encoding,
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    (SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s) AS system_identifier,
    pg_catalog.pg_postmaster_start_time() AS started_at,
    textsend(current_user::text) AS acting_role,
    textsend(session_user::text) AS session_role,
    (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) AS superuser,
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'select')
        AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'select') AS sees_passwords
