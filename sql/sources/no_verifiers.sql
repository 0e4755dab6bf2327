-- Relation `verifier` where schema pgrole does not exist and password verifiers may not be read: no rows.
SELECT NULL::oid AS role, NULL::text AS verifier WHERE false
