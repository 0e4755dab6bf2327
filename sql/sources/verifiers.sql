-- Relation `verifier` where schema pgrole does not exist and password verifiers may be read.
SELECT a.oid AS role, a.rolpassword AS verifier FROM pg_catalog.pg_authid AS a
