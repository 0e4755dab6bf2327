-- As applied.sql, in parallel arrays, so that the answer to another question fits beside it. One row. `left_out`: roles are missing,
-- those with more than 2,000 bytes. Tenants decide how much waits.
-- $1 oid[] roles, few; NULL: all are left out
SELECT
    array_agg(a.role_oid) FILTER (WHERE a.fits) AS roles, array_agg(textsend(a.holder)) FILTER (WHERE a.fits) AS holders,
    array_agg(textsend(a.digest)) FILTER (WHERE a.fits) AS digests,
    array_agg(a.drift_count) FILTER (WHERE a.fits) AS drift_counts,
    array_agg(textsend(a.approve_handled)) FILTER (WHERE a.fits) AS handled,
    $1::oid[] IS NULL OR count(*) FILTER (WHERE NOT a.fits) > 0 AS left_out
FROM (
    SELECT
        s.role_oid, s.holder, s.digest, s.drift_count, s.approve_handled,
        octet_length(s.holder) + octet_length(s.digest) + octet_length(s.approve_handled) <= 2000 AS fits
    FROM pgrole.applied AS s
    WHERE s.role_oid = ANY ($1::oid[])
) AS a
