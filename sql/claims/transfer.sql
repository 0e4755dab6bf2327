-- The objects of another cluster have other uids. A namespace uid of '' stands for any namespace of that name, until an
-- object takes the claim; the uid of the object is kept, since a cluster that was only given another id has the same ones.
-- $1 text[] role names   $2 text[] those of them that any namespace of the same name may take   $3 text cluster
UPDATE pgrole.claim
SET cluster = $3, namespace_uid = CASE WHEN role_name = ANY ($2) THEN '' ELSE namespace_uid END
WHERE role_name = ANY ($1)
