-- The roles stay, and wait for an object of the same place to take them back, or for another one to adopt them.
-- $1 text[] role names
UPDATE pgrole.claim SET released_at = now() WHERE role_name = ANY ($1) AND released_at IS NULL
