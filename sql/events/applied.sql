-- What was last applied for these roles in this database? One row for each. $1 oid[] roles
SELECT
    a.role_oid AS role, textsend(a.holder) AS holder, textsend(a.digest) AS digest, a.drift_count,
    textsend(a.last_drift::text) AS last_drift
FROM pgrole.applied AS a
WHERE a.role_oid = ANY ($1::oid[])
