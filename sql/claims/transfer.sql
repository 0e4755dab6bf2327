-- Transfers claims to another cluster, whose objects have other uids. An empty namespace uid stands for any namespace of that
-- name, until an object takes the claim. The object uid is kept, since a cluster whose id was changed still has the same uids.
-- $1 text[] role names   $2 text[] those of them that any namespace of the same name may take   $3 text cluster
UPDATE pgrole.claim
SET cluster = $3, namespace_uid = CASE WHEN role_name = ANY ($2) THEN '' ELSE namespace_uid END
WHERE role_name = ANY ($1)
