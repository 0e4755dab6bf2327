-- Relation `claim` for questions that need no claims, since the caller knows them: no rows.
SELECT
    NULL::oid AS role_oid, NULL::bigint AS system_identifier, NULL::text AS cluster, NULL::text AS namespace,
    NULL::text AS namespace_uid, NULL::timestamptz AS released_at
WHERE false
