-- Revokes the memberships that others hold in the role, but our own, by which we may be allowed to drop it. Setting of
-- the session: pgrole.role, its oid.
DO $revoke_members$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT g.rolname AS role, m.rolname AS member, b.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS a
        JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
        JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
        LEFT JOIN pg_catalog.pg_roles AS b ON b.oid = a.grantor
        WHERE a.roleid = current_setting('pgrole.role')::oid AND m.rolname <> current_user
    LOOP
        IF current_setting('server_version_num')::int < 160000 THEN
            EXECUTE format('REVOKE %I FROM %I', held.role, held.member);
        ELSE
            EXECUTE format('REVOKE %I FROM %I GRANTED BY %I CASCADE', held.role, held.member, held.grantor);
        END IF;
    END LOOP;
END
$revoke_members$
