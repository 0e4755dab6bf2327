-- Which transactions wrote what a role consists of, the latest first? Only roles that may read oid and xmin of pg_authid can ask.
-- $1 oid
SELECT r.xmin
FROM (
    SELECT a.xmin::text::bigint AS xmin, age(a.xmin) AS age FROM pg_catalog.pg_authid AS a WHERE a.oid = $1
    UNION ALL
    SELECT m.xmin::text::bigint, age(m.xmin) FROM pg_catalog.pg_auth_members AS m WHERE m.member = $1
    UNION ALL
    SELECT s.xmin::text::bigint, age(s.xmin) FROM pg_catalog.pg_db_role_setting AS s WHERE s.setrole = $1
    UNION ALL
    SELECT d.xmin::text::bigint, age(d.xmin) FROM pg_catalog.pg_shdescription AS d
    WHERE d.objoid = $1 AND d.classoid = 'pg_catalog.pg_authid'::regclass
) AS r
WHERE r.xmin >= 3
ORDER BY r.age
LIMIT 20
