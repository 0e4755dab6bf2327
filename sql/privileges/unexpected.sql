-- Is one of these objects not as it was read: name, owner or ACL? One row. As sql/privileges/objects.sql.
-- The setting pgrole.expected: jsonb array of objects with catalog, oid, schema, name, owner, seen
SELECT EXISTS (
    SELECT
    FROM jsonb_to_recordset(current_setting('pgrole.expected')::jsonb)
        AS e (catalog text, oid oid, schema text, name text, owner oid, seen text)
    LEFT JOIN LATERAL (
        SELECT n.nspname AS schema, c.relname AS name, c.relowner AS owner, c.relacl AS acl
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE e.catalog = 'pg_class' AND c.oid = e.oid
        UNION ALL
        SELECT n.nspname, n.nspname, n.nspowner, n.nspacl
        FROM pg_catalog.pg_namespace AS n
        WHERE e.catalog = 'pg_namespace' AND n.oid = e.oid
        UNION ALL
        SELECT '', d.datname, d.datdba, d.datacl
        FROM pg_catalog.pg_database AS d
        WHERE e.catalog = 'pg_database' AND d.oid = e.oid AND d.datname = current_database()
    ) AS f ON true
    WHERE f.owner IS NULL OR f.owner <> e.owner OR f.schema::text <> e.schema OR f.name::text <> e.name
       OR to_hex(hashtextextended(format('%s %s', f.owner, f.acl) COLLATE "C", 0)) <> e.seen
) AS unexpected
