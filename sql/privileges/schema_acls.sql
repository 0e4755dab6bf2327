-- Who may do what in these schemas? One row: a hash that depends on oids alone, since roles can be renamed.
-- The setting pgrole.schemas: oid[]
SELECT encode(sha256(convert_to(string_agg(format('%s %s', n.oid, a.entries), ' ' ORDER BY n.oid), 'UTF8')), 'hex') AS acls
FROM pg_catalog.pg_namespace AS n
CROSS JOIN LATERAL (
    SELECT string_agg(e::text, ' ' ORDER BY e.grantor, e.grantee, e.privilege_type) AS entries
    FROM aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner)) || '{}'::aclitem[]) AS e -- unpacked once, not for each entry
) AS a
WHERE n.oid = ANY (current_setting('pgrole.schemas')::oid[])
