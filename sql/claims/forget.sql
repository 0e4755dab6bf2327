-- Deletes released claims. No object can take these roles back; objects can adopt them.
-- $1 text[] role names
DELETE FROM pgrole.claim WHERE role_name = ANY ($1) AND released_at IS NOT NULL
