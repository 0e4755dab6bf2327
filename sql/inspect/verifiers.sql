-- Which password verifiers do these roles have? A role whose verifier may not be read is not in the result.
-- Relation verifier: sql/sources. A verifier longer than any that PostgreSQL makes is cut, so that it equals no other.
-- $1 oid[] roles
SELECT v.role, substring(v.verifier FOR 4096) AS verifier FROM verifier AS v WHERE v.role = ANY ($1::oid[])
