-- Nobody takes these roles back any more; they can be adopted.
-- $1 text[] role names
DELETE FROM pgrole.claim WHERE role_name = ANY ($1) AND released_at IS NOT NULL
