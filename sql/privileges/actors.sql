-- May the role that logged in act as these? One row for each that exists. Names are sent as bytes: another database may have
-- written them in its encoding.
-- $1 bytea[] names of roles
SELECT
    textsend(r.rolname::text) AS name, textsend(session_user::text) AS own_role, r.rolsuper AS superuser,
    (SELECT o.rolsuper FROM pg_catalog.pg_roles AS o WHERE o.rolname = session_user) AS unlimited,
    pg_catalog.pg_has_role(session_user, r.oid, 'USAGE')
        AND pg_catalog.pg_has_role(
            session_user, r.oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END
        ) AS allowed,
    textsend(pg_catalog.current_database()::text) AS database
FROM pg_catalog.pg_roles AS r
WHERE textsend(r.rolname::text) = ANY ($1::bytea[])
ORDER BY r.rolname
