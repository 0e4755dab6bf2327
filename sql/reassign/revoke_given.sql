-- Revokes the memberships that the role granted, and the grants that depend on them: since PostgreSQL 16, a grantor cannot be
-- dropped. Setting of the session: pgrole.role, its oid.
-- A superuser locks the names first; other roles verify that the membership is revoked. If a name has changed, this fails
-- with PGR03, and nothing is changed.
DO $revoke_given$
DECLARE
    given record;
BEGIN
    IF current_setting('server_version_num')::int < 160000 THEN
        RETURN;
    END IF;
    IF has_table_privilege('pg_catalog.pg_authid', 'UPDATE') THEN
        PERFORM
        FROM pg_catalog.pg_authid AS a
        WHERE a.oid IN (
            SELECT unnest(ARRAY[m.roleid, m.member, m.grantor])
            FROM pg_catalog.pg_auth_members AS m
            WHERE m.grantor = current_setting('pgrole.role')::oid
        )
        ORDER BY a.oid
        FOR KEY SHARE OF a;
    END IF;
    FOR given IN
        SELECT a.roleid, a.member AS member_oid, a.grantor AS grantor_oid,
               g.rolname AS role, m.rolname AS member, b.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS a
        JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
        JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
        JOIN pg_catalog.pg_roles AS b ON b.oid = a.grantor
        WHERE a.grantor = current_setting('pgrole.role')::oid AND a.grantor NOT IN (a.roleid, a.member)
    LOOP
        EXECUTE format('REVOKE %I FROM %I GRANTED BY %I CASCADE', given.role, given.member, given.grantor);
        IF EXISTS (
            SELECT
            FROM pg_catalog.pg_auth_members AS a
            WHERE a.roleid = given.roleid AND a.member = given.member_oid AND a.grantor = given.grantor_oid
        ) THEN
            RAISE EXCEPTION 'a role was renamed in the meantime' USING ERRCODE = 'PGR03';
        END IF;
    END LOOP;
END
$revoke_given$
