-- Which roles does each of these namespaces claim on this server? At most 10,000 each.
-- $1 text[] namespaces   $2 text[] their uids   $3 text cluster   $4 bigint system identifier
SELECT
    a.place,
    ARRAY(
        SELECT c.role_oid
        FROM pgrole.claim AS c
        WHERE c.cluster = $3 AND c.namespace = a.namespace AND c.namespace_uid = a.uid
          AND c.system_identifier = $4 AND c.released_at IS NULL AND c.role_oid <> 0
        ORDER BY c.role_oid
        LIMIT 10000
    ) AS roles
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (namespace, uid, place)
