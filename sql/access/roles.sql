-- Which roles exist, and what decides about their access? `page_key`, `page_size`: postgres/answer_pages.py.
SELECT
    r.oid, textsend(r.rolname::text) AS name, r.rolsuper AS superuser, r.rolcanlogin AS login, r.rolinherit AS inherit,
    r.rolbypassrls AS bypass_rls, r.oid::bigint AS page_key, 500 AS page_size
FROM pg_catalog.pg_roles AS r
