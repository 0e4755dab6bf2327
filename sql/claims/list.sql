-- Which claims exist, and what is the state of the role of each?
-- role: there (has the oid), renamed (has the oid, not the name), replaced (has the name, not the oid), gone,
--   unproven (has the name; the claim was made on another server or copy, whose oids mean nothing here)
-- Role names are sent as bytes: another database may have written them in its encoding.
-- $1 text cluster   $2 text namespace   $3 text role name   $4 boolean released; NULL: any
SELECT
    c.role_name, c.role_oid, c.system_identifier, c.cluster, c.namespace, c.namespace_uid, c.object, c.object_uid, c.applied,
    c.drift_count, c.last_drift_at, c.last_drift_fields, c.released_at,
    CASE
        WHEN c.system_identifier <> s.system_identifier THEN CASE WHEN n.oid IS NULL THEN 'gone' ELSE 'unproven' END
        WHEN n.oid = c.role_oid THEN 'there'
        WHEN o.oid IS NOT NULL THEN 'renamed'
        WHEN n.oid IS NOT NULL THEN 'replaced'
        ELSE 'gone'
    END AS role,
    CASE
        WHEN c.system_identifier = s.system_identifier AND n.oid IS DISTINCT FROM o.oid THEN textsend(o.rolname::text)
    END AS seen_as
FROM pgrole.claim AS c
CROSS JOIN pg_catalog.pg_control_system() AS s
LEFT JOIN pg_catalog.pg_roles AS n ON n.rolname = c.role_name::name
LEFT JOIN pg_catalog.pg_roles AS o ON o.oid = c.role_oid
WHERE ($1::text IS NULL OR c.cluster = $1)
  AND ($2::text IS NULL OR c.namespace = $2)
  AND ($3::text IS NULL OR c.role_name = $3)
  AND ($4::boolean IS NULL OR (c.released_at IS NOT NULL) = $4)
ORDER BY c.cluster, c.namespace, c.object, c.role_name
