-- As applied.sql, in parallel arrays, so that the answer to another question fits beside it. One row. `left_out`: how many roles are
-- missing: those with more than 2,000 bytes, and those beyond 1 MiB altogether. Tenants decide how much waits for its first grant.
-- $1 oid[] roles
SELECT
    array_agg(a.role_oid) FILTER (WHERE a.fits) AS roles, array_agg(textsend(a.holder)) FILTER (WHERE a.fits) AS holders,
    array_agg(textsend(a.digest)) FILTER (WHERE a.fits) AS digests,
    array_agg(a.drift_count) FILTER (WHERE a.fits) AS drift_counts,
    array_agg(textsend(a.approve_handled)) FILTER (WHERE a.fits) AS handled,
    count(*) FILTER (WHERE NOT a.fits) AS left_out
FROM (
    SELECT
        s.role_oid, s.holder, s.digest, s.drift_count, s.approve_handled,
        l.bytes <= 2000
            AND sum(CASE WHEN l.bytes <= 2000 THEN l.bytes ELSE 0 END) OVER (ROWS UNBOUNDED PRECEDING) <= 1048576 AS fits
    FROM pgrole.applied AS s
    -- with what the arrays take for each role
    CROSS JOIN LATERAL (
        SELECT 70 + octet_length(s.holder) + octet_length(s.digest) + octet_length(s.approve_handled) AS bytes OFFSET 0
    ) AS l
    WHERE s.role_oid = ANY ($1::oid[])
) AS a
