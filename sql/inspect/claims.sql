-- Which objects of this cluster hold a claim that is not released? One page, in the order of the role names.
-- $1 text cluster   $2 text the last role name of the page before   $3 bigint maximum number of rows
SELECT namespace, object, object_uid, role_name
FROM pgrole.claim
WHERE cluster = $1 AND released_at IS NULL AND role_name > $2
ORDER BY role_name
LIMIT $3
