-- Revokes the memberships that the role granted, with what was granted by them: since PostgreSQL 16 a grantor cannot be
-- dropped, before it is not minded. Setting of the session: pgrole.role, its oid.
DO $revoke_given$
DECLARE
    given record;
BEGIN
    IF current_setting('server_version_num')::int < 160000 THEN
        RETURN;
    END IF;
    FOR given IN
        SELECT g.rolname AS role, m.rolname AS member, b.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS a
        JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
        JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
        JOIN pg_catalog.pg_roles AS b ON b.oid = a.grantor
        WHERE a.grantor = current_setting('pgrole.role')::oid AND a.grantor NOT IN (a.roleid, a.member)
    LOOP
        EXECUTE format('REVOKE %I FROM %I GRANTED BY %I CASCADE', given.role, given.member, given.grantor);
    END LOOP;
END
$revoke_given$
