-- The last drifts of a role that this database knows, the latest first. Texts are bounded by the table.
-- $1 text role   $2 integer
SELECT
    h.last_at AS at, h.count, h.kind, h.corrected, coalesce(h.proof, '') AS proof,
    ARRAY(SELECT textsend(f) FROM unnest(h.fields) AS f) AS fields,
    textsend(coalesce(h.database, '')) AS database, textsend(coalesce(h.login, '')) AS login,
    textsend(coalesce(h.acting, '')) AS acting, textsend(coalesce(h.application, '')) AS application,
    textsend(coalesce(h.address, '')) AS address, textsend(coalesce(h.statement, '')) AS statement
FROM pgrole.drift_history AS h
WHERE h.role = $1
ORDER BY h.last_at DESC
LIMIT $2
