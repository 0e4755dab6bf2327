-- Which clusters' namespaces of these names claim roles, and how many each? At most 10,000.
-- $1 text[] namespaces
SELECT c.cluster, c.namespace, c.namespace_uid, count(*) AS claims
FROM pgrole.claim AS c
WHERE c.namespace = ANY ($1::text[]) AND c.released_at IS NULL
GROUP BY c.cluster, c.namespace, c.namespace_uid
ORDER BY count(*) DESC, c.cluster, c.namespace, c.namespace_uid
LIMIT 10000
