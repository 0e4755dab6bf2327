-- May the role that logged in act as these? One row for each that exists. Names are sent as bytes: another database may have
-- written them in its encoding. `member_of`: the role that it must be a member of. For pg_database_owner, which is granted to
-- no one, that is the owner of the database.
-- $1 name[] roles   $2 bytea[] those whose names are not UTF-8
SELECT
    textsend(r.rolname::text) AS name, textsend(m.rolname::text) AS member_of, textsend(session_user::text) AS own_role,
    m.rolsuper AS superuser,
    (SELECT o.rolsuper FROM pg_catalog.pg_roles AS o WHERE o.rolname = session_user) AS unlimited,
    pg_catalog.pg_has_role(session_user, r.oid, 'USAGE')
        AND pg_catalog.pg_has_role(
            session_user, r.oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END
        ) AS allowed,
    textsend(pg_catalog.current_database()::text) AS database
FROM pg_catalog.pg_database AS d
CROSS JOIN pg_catalog.pg_roles AS r
JOIN pg_catalog.pg_roles AS m ON m.oid = CASE r.rolname WHEN 'pg_database_owner' THEN d.datdba ELSE r.oid END
WHERE d.datname = pg_catalog.current_database()
  AND (
      r.rolname = ANY ($1::name[])
      -- a database that converts names may hold some that it cannot convert
      OR CASE WHEN cardinality($2::bytea[]) > 0
          THEN decode(replace(r.rolname::text, '\', '\\'), 'escape') = ANY ($2::bytea[]) ELSE false END
  )
ORDER BY r.rolname
