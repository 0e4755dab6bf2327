-- What still needs these roles, counted by database ('' for what the whole server shares)?
-- $1 oid[] roles
SELECT needed.role, coalesce(d.datname::text, '') AS database, sum(needed.count)::bigint AS count
FROM (
    SELECT s.refobjid AS role, s.dbid, count(*) AS count
    FROM pg_catalog.pg_shdepend AS s
    WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = ANY ($1::oid[])
    GROUP BY 1, 2
    UNION ALL
    SELECT m.roleid, 0, count(*)
    FROM pg_catalog.pg_auth_members AS m
    WHERE m.roleid = ANY ($1::oid[])
      -- the membership that PostgreSQL 16 gives to the creator of a role goes with it
      AND m.member <> (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user)
    GROUP BY 1
) AS needed
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = needed.dbid
GROUP BY 1, 2
ORDER BY 1, 2
