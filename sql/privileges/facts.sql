-- What policies need to know of the database besides its objects. One row.
-- Any role that can log in can store settings of any length. Those that are compressed or long are not read: decompressing them
-- could take longer than any timeout. Values are cut as bytes: another database may have written them in its encoding, which no
-- function for text accepts. `search_paths_cut`: not every value of search_path was read. Functions in another session's
-- temporary schema do not count: that session alone can call them. Only a superuser can read the server's configuration files:
-- then sql/privileges/configuration.sql takes the place of the comment.
-- $1 text[] roles that declarations name as creators   $2 boolean whether to read the values of search_path
WITH config AS MATERIALIZED (
    SELECT
        m.items,
        m.is_short AND sum(CASE WHEN m.is_short THEN m.bytes END) OVER (ROWS UNBOUNDED PRECEDING) <= 2000000 AS is_read
    FROM (
        SELECT
            s.items, pg_column_size(s.items) AS bytes,
            pg_column_compression(s.items) IS NULL AND pg_column_size(s.items) <= 8192 AS is_short
        FROM (
            SELECT s.setconfig AS items
            FROM pg_catalog.pg_db_role_setting AS s
            JOIN pg_catalog.pg_database AS d ON d.datname = current_database() AND s.setdatabase IN (0, d.oid)
            WHERE $2::boolean
            UNION ALL
            SELECT p.proconfig
            FROM pg_catalog.pg_proc AS p
            WHERE $2::boolean AND p.oid >= 16384 AND p.proconfig IS NOT NULL
              AND NOT pg_catalog.pg_is_other_temp_schema(p.pronamespace)
            /* configuration */
            LIMIT 20000
        ) AS s
    ) AS m
)
SELECT
    textsend(current_database()::text) AS database, current_setting('server_version_num')::int AS version,
    ARRAY(SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper) AS superusers,
    ARRAY(
        SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname IN (current_user, session_user)
    ) AS own_roles,
    ARRAY(
        SELECT DISTINCT substring(textsend(c.setting) FROM 13 FOR 2000)
        FROM config AS s
        CROSS JOIN LATERAL unnest(CASE WHEN s.is_read THEN s.items END) AS c (setting)
        WHERE c.setting LIKE 'search\_path=%'
        LIMIT 1000
    ) AS search_paths,
    NOT $2::boolean
        OR (SELECT count(*) FILTER (WHERE NOT s.is_read) > 0 OR count(*) >= 20000 FROM config AS s) AS search_paths_cut,
    ARRAY(
        SELECT textsend(n.nspname::text)
        FROM pg_catalog.pg_namespace AS n
        -- by index: a database has fewer schemas than a server has roles
        WHERE EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = n.nspname OFFSET 0)
    ) AS role_schemas,
    creators.oids AS creators, creators.names AS creator_names
FROM (
    SELECT array_agg(r.oid) AS oids, array_agg(textsend(r.rolname::text)) AS names
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = ANY ($1::text[]::name[])
) AS creators
