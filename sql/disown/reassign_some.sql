-- Hands over the first tables, views and sequences that the role owns here: REASSIGN OWNED locks all of them at once, and
-- so many that the server has no room for the locks of anybody. Settings of the session: pgrole.role,
-- pgrole.new_owner, the oids of both; pgrole.piece, how many.
DO $reassign_some$
DECLARE
    relation record;
BEGIN
    FOR relation IN
        SELECT n.nspname AS schema_name, c.relname AS name, r.rolname AS new_owner
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_roles AS r ON r.oid = current_setting('pgrole.new_owner')::oid
        WHERE c.relowner = current_setting('pgrole.role')::oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
          AND c.relpersistence <> 't'
          -- a sequence of a column goes with its table
          AND NOT EXISTS (
              SELECT
              FROM pg_catalog.pg_depend AS d
              WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND c.relkind = 'S'
                AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
          )
        LIMIT current_setting('pgrole.piece')::int
    LOOP
        EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', relation.schema_name, relation.name, relation.new_owner);
    END LOOP;
END
$reassign_some$
