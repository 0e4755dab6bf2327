-- In place of pgrole.read_verifiers where it may not be called: where verifiers may not be read.
SELECT NULL::oid AS role, NULL::text AS verifier WHERE false
