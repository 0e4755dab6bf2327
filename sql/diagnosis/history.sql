-- Which drifts does this database know, the latest first? The table bounds every text.
-- $1 timestamptz since   $2 text role; NULL: all   $3 integer at most
SELECT
    h.at, h.last_at, h.count, h.kind, h.corrected,
    textsend(h.role) AS role,
    ARRAY(SELECT textsend(f) FROM pg_catalog.unnest(h.fields) AS f) AS fields,
    textsend(h.details::text) AS details,
    textsend(coalesce(h.database, '')) AS database, textsend(coalesce(h.login, '')) AS login,
    textsend(coalesce(h.acting, '')) AS acting, textsend(coalesce(h.application, '')) AS application,
    textsend(coalesce(h.address, '')) AS address,
    -- statements of role DDL are never stored; not shown either if someone stored one
    textsend(CASE WHEN h.kind = 'privileges' THEN coalesce(h.statement, '') ELSE '' END) AS statement,
    textsend(coalesce(h.proof, '')) AS proof, textsend(coalesce(h.cluster, '')) AS cluster
FROM pgrole.drift_history AS h
WHERE h.last_at >= $1 AND ($2::text IS NULL OR h.role = $2)
ORDER BY h.last_at DESC, h.at DESC, h.drift
LIMIT $3
