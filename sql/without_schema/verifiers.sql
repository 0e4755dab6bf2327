-- In place of pgrole.read_verifiers where it may not be called: where verifiers may be read.
SELECT a.oid AS role, a.rolpassword AS verifier FROM pg_catalog.pg_authid AS a
