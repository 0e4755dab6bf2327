-- What do these roles log in with? Only those whose verifier may be read.
-- $1 oid[] roles
SELECT v.role, v.verifier FROM pgrole.read_verifiers($1::oid[]) AS v
