-- Which transactions wrote what these roles consist of, the latest first? Noted in the session before a repair overwrites it,
-- for a later question (sql/attribution/noted_rows.sql): one line for each transaction that repairs, after those that are noted
-- already. Only roles that may read pg_authid can ask.
-- drifted_roles: an array of oids
SELECT pg_catalog.set_config('pgrole.drifted', right(coalesce(current_setting('pgrole.drifted', true), ''), 100000) || E'\n' || coalesce((
    SELECT json_object_agg(o.oid, ARRAY(
        SELECT r.xmin
        FROM (
            SELECT a.xmin::text::bigint AS xmin, pg_catalog.age(a.xmin) AS age FROM pg_catalog.pg_authid AS a WHERE a.oid = o.oid
            UNION ALL
            SELECT m.xmin::text::bigint, pg_catalog.age(m.xmin) FROM pg_catalog.pg_auth_members AS m WHERE m.member = o.oid
            UNION ALL
            SELECT s.xmin::text::bigint, pg_catalog.age(s.xmin) FROM pg_catalog.pg_db_role_setting AS s WHERE s.setrole = o.oid
            UNION ALL
            SELECT d.xmin::text::bigint, pg_catalog.age(d.xmin) FROM pg_catalog.pg_shdescription AS d
            WHERE d.objoid = o.oid AND d.classoid = 'pg_catalog.pg_authid'::regclass
        ) AS r
        WHERE r.xmin >= 3
        ORDER BY r.age
        LIMIT 20
    ))::text
    FROM unnest(drifted_roles) AS o (oid)
), '{}'), false)
