-- Which role and claim does each of the requested objects have? In order; two rows if the declared name and the claim's oid
-- belong to two roles, one row without a role if there is none.
-- Names and texts of shared catalogs are sent as bytes: another database may have written them in its encoding.
-- Any role that can log in can make some of them as long as PostgreSQL permits. Values longer than an object can declare are
-- not sent: then a comment is one zero byte, and the settings in one database are NULL. They are not even decompressed
-- (octet_length, pg_column_size and pg_column_compression do not), except settings of at most 1 MB while compressed.
-- `put_off`: memberships and settings are omitted since they are, or may be, long; the role must be requested alone. So must one
-- whose claim holds long privileges, which are NULL then.
-- OFFSET 0: each row is found by index, whatever the statistics say, instead of reading all roles, claims or settings.
-- Relations claim and verifier: sql/sources.
-- $1 name[] role names ('' if the object was deleted)   $2 text[] namespaces   $3 text[] objects   $4 text cluster
-- $5 bigint system identifier
SELECT
    a.place,
    r.oid, textsend(r.rolname::text) AS name, r.rolname IS NOT DISTINCT FROM a.role_name AS is_named,
    r.rolcanlogin AS login, r.rolsuper AS superuser, r.rolcreatedb AS createdb, r.rolcreaterole AS createrole,
    r.rolinherit AS inherit, r.rolreplication AS replication, r.rolbypassrls AS bypassrls,
    r.rolconnlimit AS connection_limit,
    CASE WHEN r.rolvaliduntil = '-infinity' THEN -9223372036854775808
         WHEN r.rolvaliduntil < 'infinity'
         THEN least(extract(epoch FROM r.rolvaliduntil) * 1000000, 9223372036854775807)::bigint
    END AS valid_until,
    (
        SELECT CASE WHEN octet_length(e.description) <= 8192 THEN textsend(e.description) ELSE '\x00'::bytea END
        FROM pg_catalog.pg_shdescription AS e
        WHERE e.classoid = 'pg_catalog.pg_authid'::regclass AND e.objoid = r.oid
    ) AS comment,
    v.role IS NOT NULL AS sees_password,
    CASE WHEN octet_length(v.verifier) <= 4096 THEN 'sha256:' || encode(sha256(convert_to(v.verifier, 'UTF8')), 'hex')
         ELSE 'length:' || octet_length(v.verifier)
    END AS password,
    held.member_of, held.settings, held.put_off,
    -- only for a role that its claim does not hold: adoption must not take over a role that reaches more than is permitted
    CASE WHEN c.role_oid IS DISTINCT FROM r.oid OR c.released_at IS NOT NULL
        OR (c.system_identifier = $5) IS FALSE
    THEN ARRAY(
        WITH RECURSIVE reached AS (
            SELECT roleid FROM pg_catalog.pg_auth_members WHERE member = r.oid
            UNION
            SELECT m.roleid
            FROM reached AS h
            CROSS JOIN LATERAL (SELECT i.roleid FROM pg_catalog.pg_auth_members AS i WHERE i.member = h.roleid OFFSET 0) AS m
        )
        SELECT textsend(x.rolname::text)
        FROM reached AS h
        CROSS JOIN LATERAL (SELECT i.* FROM pg_catalog.pg_roles AS i WHERE i.oid = h.roleid OFFSET 0) AS x
        WHERE x.rolsuper
           OR x.rolname IN (
               'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_write_all_data'
           )
           OR x.rolname IN (current_user, session_user)
        ORDER BY 1
        LIMIT 20
    ) END AS reaches,
    -- another object's role, which someone renamed to this name
    (
        SELECT format('%s/%s', y.namespace, y.object)
        FROM claim AS y
        WHERE y.role_oid = r.oid AND y.system_identifier = $5 AND y.released_at IS NULL AND y.role_oid <> 0
          AND y.role_name <> a.role_name::text
        LIMIT 1
    ) AS held_by,
    c.role_name AS claim_role_name, c.role_oid AS claim_role_oid, c.system_identifier AS claim_system_identifier,
    c.cluster AS claim_cluster, c.namespace AS claim_namespace, c.namespace_uid AS claim_namespace_uid,
    c.object AS claim_object, c.object_uid AS claim_object_uid, c.applied AS claim_applied,
    c.drift_count AS claim_drift_count, c.last_drift_at AS claim_last_drift_at,
    c.last_drift_fields AS claim_last_drift_fields, c.released_at IS NOT NULL AS claim_released,
    c.password_source AS claim_password_source, c.password_digest AS claim_password_digest,
    c.rotated_at AS claim_rotated_at, c.rotate_handled AS claim_rotate_handled,
    c.connection_secret AS claim_connection_secret,
    -- since version 4 of the schema
    (g.claim ->> 'object_generation')::bigint AS claim_object_generation, g.claim ->> 'server_uid' AS claim_server_uid,
    (g.claim ->> 'server_generation')::bigint AS claim_server_generation,
    g.claim ->> 'approve_handled' AS claim_approve_handled,
    k.bytes AS claim_privileges_bytes,
    CASE WHEN k.bytes <= CASE WHEN cardinality($1::name[]) > 1 THEN 16384 ELSE 1048576 END
        THEN g.claim ->> 'privileges'
    END AS claim_privileges,
    ARRAY(
        SELECT ARRAY[f.role_name, f.object_uid]
        FROM claim AS f
        WHERE f.cluster = $4 AND f.namespace = a.namespace AND f.object = a.object
          AND f.role_name <> a.role_name::text AND f.released_at IS NULL
        LIMIT 100
    ) AS former,
    current_setting('scram_iterations', true)::int AS scram_iterations, statement_timestamp() AS at
FROM unnest($1::name[], $2::text[], $3::text[]) WITH ORDINALITY AS a (role_name, namespace, object, place)
LEFT JOIN LATERAL (SELECT i.* FROM claim AS i WHERE i.role_name = a.role_name::text OFFSET 0) AS c ON true
LEFT JOIN LATERAL (SELECT to_jsonb(c) AS claim OFFSET 0) AS g ON true -- computed once
LEFT JOIN LATERAL (SELECT octet_length(g.claim ->> 'privileges') AS bytes) AS k ON true
LEFT JOIN LATERAL (
    SELECT n.* FROM pg_catalog.pg_roles AS n WHERE n.rolname = a.role_name
    UNION ALL -- not UNION, which would decompress the settings to compare them
    -- a retained role that was renamed is no one's; the oids of another server mean nothing here; NULL: claims are not in the
    -- database
    SELECT o.*
    FROM pg_catalog.pg_roles AS o
    WHERE o.oid = c.role_oid AND c.released_at IS NULL AND (c.system_identifier = $5) IS NOT FALSE
      AND o.rolname IS DISTINCT FROM a.role_name
) AS r ON true
LEFT JOIN LATERAL (SELECT i.* FROM verifier AS i WHERE i.role = r.oid OFFSET 0) AS v ON true
LEFT JOIN LATERAL (
    SELECT
        size.put_off,
        CASE WHEN NOT size.put_off THEN (
            -- to_jsonb: before PostgreSQL 16, the columns of INHERIT and SET do not exist, and both always hold
            SELECT textsend(json_agg(json_build_object(
                'role', g.rolname,
                'grantor', coalesce(b.rolname::text, ''),
                'admin', m.admin_option,
                'inherit', coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, true),
                'set', coalesce((to_jsonb(m) ->> 'set_option')::boolean, true),
                -- since PostgreSQL 16, a role with CREATEROLE has only ADMIN on the roles that it created
                'by_creation', (
                    r.rolcreaterole AND m.grantor = 10 AND m.admin_option AND g.oid >= 16384 AND NOT g.rolsuper
                    AND to_jsonb(m) ->> 'inherit_option' = 'false' AND to_jsonb(m) ->> 'set_option' = 'false'
                    AND NOT EXISTS (
                        SELECT FROM claim AS k
                        WHERE k.role_oid = g.oid AND k.role_oid <> 0 AND (k.system_identifier = $5) IS NOT FALSE
                          AND k.released_at IS NULL
                        OFFSET 0
                    )
                ) IS TRUE,
                'passed_on', CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ARRAY(
                    SELECT p.rolname::text
                    FROM pg_catalog.pg_auth_members AS x JOIN pg_catalog.pg_roles AS p ON p.oid = x.member
                    WHERE x.roleid = m.roleid AND x.grantor = r.oid
                    LIMIT 6
                ) END
            ) ORDER BY g.rolname, b.rolname)::text)
            FROM (
                SELECT i.* FROM pg_catalog.pg_auth_members AS i WHERE i.member = r.oid ORDER BY i.roleid LIMIT 1000
            ) AS m
            CROSS JOIN LATERAL (SELECT i.* FROM pg_catalog.pg_roles AS i WHERE i.oid = m.roleid OFFSET 0) AS g
            LEFT JOIN LATERAL (SELECT i.* FROM pg_catalog.pg_roles AS i WHERE i.oid = m.grantor OFFSET 0) AS b ON true
        ) END AS member_of,
        CASE WHEN NOT size.put_off THEN (
            -- an object can declare at most 64 settings of 1024 characters in each of 32 databases
            SELECT textsend(json_object_agg(
                s.datname::text,
                CASE WHEN s.bytes <= 600000 AND s.total <= 3000000 AND s.number <= 1000 THEN s.setconfig END
            )::text)
            FROM (
                SELECT
                    i.setdatabase, i.setconfig, i.datname, c.bytes, c.number,
                    sum(c.bytes) OVER (ORDER BY i.setdatabase) AS total
                FROM (
                    SELECT
                        u.setdatabase, u.setconfig, u.datname, u.unpacked,
                        sum(CASE WHEN u.unpacked <= 610000 THEN u.unpacked END) OVER (ORDER BY u.setdatabase) AS unpacked_total
                    FROM (
                        SELECT p.setdatabase, p.setconfig, p.datname, CASE
                            WHEN p.size > 300000 THEN NULL
                            WHEN NOT p.is_packed THEN p.size
                            -- PostgreSQL unpacks it in order to append nothing, which takes less than to read its items
                            WHEN p.packed_total <= 1000000 THEN pg_column_size(p.setconfig || '{}'::text[])
                        END AS unpacked
                        FROM (
                            SELECT
                                l.*,
                                sum(CASE WHEN l.is_packed AND l.size <= 300000 THEN l.size END)
                                    OVER (ORDER BY l.setdatabase) AS packed_total
                            FROM (
                                SELECT
                                    g.setdatabase, g.setconfig, d.datname, pg_column_size(g.setconfig) AS size,
                                    pg_column_compression(g.setconfig) IS NOT NULL AS is_packed
                                -- by index, which begins with the database
                                FROM (
                                    SELECT 0::oid AS oid, ''::name AS datname
                                    UNION ALL
                                    SELECT oid, datname FROM pg_catalog.pg_database
                                ) AS d
                                CROSS JOIN LATERAL (
                                    SELECT x.setdatabase, x.setconfig
                                    FROM pg_catalog.pg_db_role_setting AS x
                                    WHERE x.setdatabase = d.oid AND x.setrole = r.oid
                                    OFFSET 0
                                ) AS g
                                ORDER BY g.setdatabase
                                LIMIT 1000
                            ) AS l
                        ) AS p
                    ) AS u
                ) AS i
                CROSS JOIN LATERAL (
                    -- as JSON, in which they are sent: a control character takes six bytes
                    SELECT sum(octet_length(to_json(n.item)::text)) AS bytes, count(*) AS number
                    FROM unnest(
                        CASE WHEN i.unpacked <= 610000 AND i.unpacked_total <= 3100000 THEN i.setconfig END
                    ) AS n (item)
                ) AS c
            ) AS s
        ) END AS settings
    FROM (
        SELECT cardinality($1::name[]) > 1 AND (
            (
                SELECT sum(pg_column_size(i.setconfig)) > 16384 OR bool_or(pg_column_compression(i.setconfig) IS NOT NULL)
                FROM (SELECT 0::oid AS oid UNION ALL SELECT oid FROM pg_catalog.pg_database) AS d
                CROSS JOIN LATERAL (
                    SELECT g.setconfig
                    FROM pg_catalog.pg_db_role_setting AS g
                    WHERE g.setdatabase = d.oid AND g.setrole = r.oid
                    OFFSET 0
                ) AS i
            ) IS TRUE
            OR (
                SELECT count(*) > 100
                FROM (SELECT FROM pg_catalog.pg_auth_members AS i WHERE i.member = r.oid LIMIT 101) AS i
            )
        ) AS put_off
        OFFSET 0
    ) AS size
) AS held ON true
ORDER BY a.place, is_named
