-- Which objects of these names hold or held claims? At most 100,000.
-- $1 text[] namespaces   $2 text[] objects
SELECT DISTINCT ON (c.namespace, c.object, c.cluster, c.object_uid)
    c.cluster, c.namespace, c.namespace_uid, c.object, c.object_uid
FROM unnest($1::text[], $2::text[]) AS a (namespace, object)
JOIN pgrole.claim AS c ON c.namespace = a.namespace AND c.object = a.object
ORDER BY c.namespace, c.object, c.cluster, c.object_uid, c.released_at DESC NULLS FIRST
LIMIT 100000
