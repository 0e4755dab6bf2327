-- Does one of these objects not have the privileges that it should have after the changes, or has this transaction not written
-- its row (sql/privileges/unwritten.sql)? One row. There are no subtransactions.
-- The setting pgrole.expected: as in sql/privileges/unexpected.sql, and for each object `present` and `absent`: arrays of
-- texts, each the oid of the grantee and a privilege. Absent: none that the owner granted.
SELECT EXISTS (
    SELECT
    FROM jsonb_to_recordset(current_setting('pgrole.expected')::jsonb)
        AS e (catalog text, oid oid, owner oid, present jsonb, absent jsonb)
    CROSS JOIN LATERAL (
        SELECT array_agg(a.grantee::text || ' ' || a.privilege_type) AS held,
            array_agg(a.grantee::text || ' ' || a.privilege_type) FILTER (WHERE a.grantor = e.owner) AS granted
        FROM (
            SELECT c.relacl, CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END
            FROM pg_catalog.pg_class AS c WHERE e.catalog = 'pg_class' AND c.oid = e.oid
            UNION ALL
            SELECT n.nspacl, 'n' FROM pg_catalog.pg_namespace AS n WHERE e.catalog = 'pg_namespace' AND n.oid = e.oid
            UNION ALL
            SELECT d.datacl, 'd' FROM pg_catalog.pg_database AS d WHERE e.catalog = 'pg_database' AND d.oid = e.oid
        ) AS f (acl, initial)
        CROSS JOIN LATERAL aclexplode(coalesce(f.acl, acldefault(f.initial, e.owner)) || '{}'::aclitem[]) AS a -- unpacked once
    ) AS h
    WHERE NOT EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE e.catalog = 'pg_class' AND c.oid = e.oid AND c.xmin = pg_current_xact_id()::xid
        UNION ALL
        SELECT FROM pg_catalog.pg_namespace AS n
        WHERE e.catalog = 'pg_namespace' AND n.oid = e.oid AND n.xmin = pg_current_xact_id()::xid
        UNION ALL
        SELECT FROM pg_catalog.pg_database AS d
        WHERE e.catalog = 'pg_database' AND d.oid = e.oid AND d.xmin = pg_current_xact_id()::xid
    )
       OR EXISTS (SELECT FROM jsonb_array_elements_text(e.present) AS p (key) WHERE (p.key = ANY (h.held)) IS NOT TRUE)
       OR EXISTS (SELECT FROM jsonb_array_elements_text(e.absent) AS p (key) WHERE p.key = ANY (h.granted))
) AS ineffective
