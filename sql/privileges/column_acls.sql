-- Who was granted what on columns of these tables by their owner, or by the role that logged in? One row: a hash that depends on
-- oids alone, since roles can be renamed.
-- The setting pgrole.tables: oid[]
SELECT encode(sha256(convert_to(string_agg(format('%s %s %s', a.attrelid, a.attnum, b.entries), ' ' ORDER BY a.attrelid, a.attnum),
    'UTF8')), 'hex') AS acls
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attacl IS NOT NULL
CROSS JOIN LATERAL (
    SELECT string_agg(e::text, ' ' ORDER BY e.grantor, e.grantee, e.privilege_type) AS entries
    FROM aclexplode(a.attacl || '{}'::aclitem[]) AS e -- unpacked once, not for each entry
    WHERE e.grantor IN (c.relowner, (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user))
) AS b
WHERE c.oid = ANY (current_setting('pgrole.tables')::oid[]) AND b.entries IS NOT NULL
