-- Deletes released claims. No object takes these roles back, except by its status; objects can adopt them.
-- $1 text[] role names
DELETE FROM pgrole.claim WHERE role_name = ANY ($1) AND released_at IS NOT NULL
