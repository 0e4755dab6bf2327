-- Which recorded DDL wrote the rows with these transaction ids (xmin)? The last statement of each transaction: GRANT or REVOKE, or
-- the one that created the object. Rows that a subtransaction wrote have another id: they are not found.
-- Lock the table first (postgres/trusted_schema.py). `login`: NULL if that role was dropped.
-- $1 bigint[] xmin (32 bits)   $2 oid catalog   $3 oid object
WITH clock AS MATERIALIZED (
    SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next
)
SELECT w.xmin, e.at, textsend(l.rolname::text) AS login
FROM clock AS c
CROSS JOIN (SELECT DISTINCT x.xmin FROM unnest($1::bigint[]) AS x (xmin) WHERE x.xmin >= 3) AS w
CROSS JOIN LATERAL (
    SELECT d.at, d.login
    FROM pgrole.ddl_event AS d
    WHERE d.xid = (c.next - ((c.next - w.xmin) & 4294967295))::text::xid8
      AND (d.command IN ('GRANT', 'REVOKE') OR (d.command LIKE 'CREATE %' AND d.class = $2::oid AND d.object = $3::oid))
    ORDER BY d.id DESC
    LIMIT 1
) AS e
LEFT JOIN pg_catalog.pg_roles AS l ON l.oid = e.login
