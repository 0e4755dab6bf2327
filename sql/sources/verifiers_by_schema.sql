-- Relation `verifier` where schema pgrole exists: the password verifiers of all roles, or no rows while the controller's
-- role may not read them.
SELECT r.oid AS role, v.verifier
FROM pg_catalog.pg_roles AS r
CROSS JOIN LATERAL pgrole.read_verifiers(ARRAY[r.oid]) AS v
