-- Which transaction, with epoch, last stored what is applied for each role of these names? One row for each role with a record.
-- $1 bytea[] names of roles, in UTF-8: the encoding of this database may lack some of their characters
SELECT
    convert_to(a.role_name, 'UTF8') AS role_name,
    c.next - ((c.next - a.xmin::text::bigint) & 4294967295) AS xid
FROM pgrole.applied AS a
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS c
WHERE convert_to(a.role_name, 'UTF8') = ANY ($1::bytea[])
