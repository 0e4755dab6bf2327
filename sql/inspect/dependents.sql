-- How many objects depend on these roles, by database ('' for shared objects)? `members` of them are members, which do not
-- block DROP ROLE. For each role, at most 20 rows, and one for `others` databases together: roles that can create databases
-- can create any number.
-- $1 oid[] roles
SELECT
    every.role,
    coalesce(min(every.database) FILTER (WHERE every.place <= 20), '') AS database,
    sum(every.count)::bigint AS count,
    sum(every.members)::bigint AS members,
    count(*) FILTER (WHERE every.place > 20) AS others
FROM (
    SELECT
        needed.role,
        row_number() OVER (PARTITION BY needed.role ORDER BY d.oid NULLS FIRST) AS place,
        CASE
            WHEN d.oid IS NULL THEN ''
            -- another database may have written the name in its encoding: if it is not UTF-8, its bytes are escaped
            WHEN encode(textsend(d.datname::text), 'hex') ~ (
                '^([0-7].|(c[2-9a-f]|d.)[89ab].|(e0[ab].|(e[1-9a-cef])[89ab].|ed[89].)[89ab].'
                || '|(f0[9ab].|f[1-3][89ab].|f48.)([89ab].){2})*$'
            ) THEN d.datname::text
            ELSE encode(textsend(d.datname::text), 'escape')
        END AS database,
        sum(needed.count)::bigint AS count,
        sum(needed.members)::bigint AS members
    FROM (
        SELECT s.refobjid AS role, s.dbid, count(*) AS count, 0 AS members
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = ANY ($1::oid[])
          -- DROP ROLE drops memberships that the role granted to itself or in itself; before PostgreSQL 16 they have no oid
          AND (s.classid, s.objid) NOT IN (
              SELECT 'pg_catalog.pg_auth_members'::regclass::oid, (to_jsonb(m) ->> 'oid')::oid
              FROM pg_catalog.pg_auth_members AS m
              WHERE (m.member = ANY ($1::oid[]) OR m.roleid = ANY ($1::oid[])) AND m.grantor IN (m.member, m.roleid)
          )
        GROUP BY 1, 2
        UNION ALL
        SELECT m.roleid, 0, count(*), count(*)
        FROM pg_catalog.pg_auth_members AS m
        WHERE m.roleid = ANY ($1::oid[])
          -- DROP ROLE drops the membership that PostgreSQL 16 grants to the creator of a role
          AND m.member <> (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user)
        GROUP BY 1
    ) AS needed
    LEFT JOIN pg_catalog.pg_database AS d ON d.oid = needed.dbid
    GROUP BY needed.role, d.oid, d.datname
) AS every
GROUP BY every.role, least(every.place, 21)
ORDER BY 1, 5, 2
