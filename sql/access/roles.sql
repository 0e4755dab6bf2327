-- Which roles exist, and what decides about their access?
SELECT
    r.oid, textsend(r.rolname::text) AS name, r.rolsuper AS superuser, r.rolcanlogin AS login, r.rolinherit AS inherit,
    r.rolbypassrls AS bypass_rls
FROM pg_catalog.pg_roles AS r
