-- What was last applied of these roles' privileges in this database, and by which object?
-- $1 oid[] roles
SELECT a.role_oid::bigint AS role, a.holder, a.digest FROM pgrole.applied AS a WHERE a.role_oid = ANY ($1::oid[])
