-- Releases claims. The roles stay: an object with the same namespace and name can take them back, and others can adopt them.
-- $1 text[] role names
UPDATE pgrole.claim SET released_at = now() WHERE role_name = ANY ($1) AND released_at IS NULL
