-- Which of these parameters may our role set since it was granted? From PostgreSQL 15 on.
-- $1 text[] parameters, in lower case
SELECT p.name
FROM unnest($1::text[]) AS p (name)
WHERE pg_catalog.has_parameter_privilege(p.name, 'SET')
