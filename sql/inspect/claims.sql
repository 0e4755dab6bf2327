-- Which objects of this cluster hold a claim that is not released?
-- $1 text cluster
SELECT namespace, object, object_uid, role_name
FROM pgrole.claim
WHERE cluster = $1 AND released_at IS NULL
