-- What was last applied for these roles in this database? One row for each that has something.
-- `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] roles   $2 boolean with the last drift of each
SELECT
    s.role_oid::bigint AS role, textsend(s.holder) AS holder, textsend(s.digest) AS digest, s.drift_count,
    textsend(s.approve_handled) AS handled, d.last_drift,
    s.role_oid::bigint AS page_key,
    600 + octet_length(s.holder) + octet_length(s.digest) + octet_length(s.approve_handled)
        + coalesce(octet_length(d.last_drift), 0) AS page_size
FROM pgrole.applied AS s
CROSS JOIN LATERAL (
    SELECT CASE WHEN $2::boolean AND jsonb_typeof(s.last_drift) = 'object' THEN textsend(s.last_drift::text) END AS last_drift
) AS d
WHERE s.role_oid = ANY ($1::oid[])
