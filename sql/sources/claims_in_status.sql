-- Relation `claim` where schema pgrole does not exist: the claims that the controller remembers on the requested roles,
-- with the columns that affect how the roles are read.
-- $6 text[] role names   $7 oid[] roles   $8 boolean[] released
SELECT
    k.role_name, k.role_oid, NULL::bigint AS system_identifier, NULL::text AS cluster, NULL::text AS namespace,
    NULL::text AS namespace_uid, NULL::text AS object, NULL::text AS object_uid, NULL::text AS applied,
    NULL::bigint AS drift_count, NULL::timestamptz AS last_drift_at, NULL::text[] AS last_drift_fields,
    CASE WHEN k.released THEN statement_timestamp() END AS released_at, NULL::text AS password_source,
    NULL::text AS password_digest, NULL::timestamptz AS rotated_at, NULL::text AS rotate_handled,
    NULL::text AS connection_secret
FROM unnest($6::text[], $7::oid[], $8::boolean[]) AS k (role_name, role_oid, released)
