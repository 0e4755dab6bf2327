-- Which of these parameters may the controller's role set because of GRANT SET ON PARAMETER? Since PostgreSQL 15.
-- $1 text[] parameters, in lower case
SELECT p.name
FROM unnest($1::text[]) AS p (name)
WHERE pg_catalog.has_parameter_privilege(p.name, 'SET')
