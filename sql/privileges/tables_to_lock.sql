-- Which of these objects are tables to be locked, so that their ACLs can be changed? Otherwise a concurrent ALTER TABLE fails
-- with "tuple concurrently updated". One row: their names for LOCK TABLE, or NULL.
-- Only tables: for a view, LOCK TABLE locks the tables that it reads, too, as its owner, who often may not; and it refuses
-- all other kinds. Tables that the controller's role may not lock are left out.
-- The setting pgrole.objects: oid[] tables and other objects, which are left out.
SELECT string_agg('ONLY ' || c.oid::regclass::text, ', ' ORDER BY c.oid) AS names
FROM pg_catalog.pg_class AS c
WHERE c.oid = ANY (current_setting('pgrole.objects')::oid[]) AND c.relkind IN ('r', 'p')
  AND pg_catalog.has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')
