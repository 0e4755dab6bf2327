-- What do these roles log in with? Only those whose verifier may be read.
-- $1 oid[] roles
-- One that is too long to be made here is cut, and like no other.
SELECT v.role, substring(v.verifier FOR 4096) AS verifier FROM pgrole.read_verifiers($1::oid[]) AS v
