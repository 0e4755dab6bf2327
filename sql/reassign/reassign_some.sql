-- Reassigns some of the tables, views and sequences that the role owns in this database: REASSIGN OWNED would lock all of
-- them at once, which can exhaust the server's lock table.
-- Settings of the session: pgrole.role and pgrole.new_owner, oids; pgrole.piece, how many.
-- ALTER TABLE waits for locks by name, and the owner of a schema can rename a table meanwhile. Therefore this fails with
-- PGR03, and nothing is changed, unless every altered table, by oid, belonged to the role; the controller then tries again.
DO $reassign_some$
DECLARE
    old_oid CONSTANT oid := current_setting('pgrole.role')::oid;
    new_oid CONSTANT oid := current_setting('pgrole.new_owner')::oid;
    new_name      name;
    wanted        oid[];
    relation      oid;
    schema_name   name;
    relation_name name;
BEGIN
    wanted := ARRAY(
        SELECT c.oid
        FROM pg_catalog.pg_class AS c
        WHERE c.relowner = old_oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
          -- the sequence of a column follows its table
          AND NOT EXISTS (
              SELECT
              FROM pg_catalog.pg_depend AS d
              WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND c.relkind = 'S'
                AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
          )
        LIMIT current_setting('pgrole.piece')::int
    );
    IF has_table_privilege('pg_catalog.pg_authid', 'UPDATE') THEN
        PERFORM FROM pg_catalog.pg_authid AS a WHERE a.oid IN (old_oid, new_oid) ORDER BY a.oid FOR KEY SHARE;
        -- from here on, no other session can change the ownership
        PERFORM
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.classid = 'pg_catalog.pg_class'::regclass AND s.objid = ANY (wanted)
          AND s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = old_oid AND s.deptype = 'o'
          AND s.dbid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
        FOR UPDATE;
    END IF;
    SELECT r.rolname INTO new_name FROM pg_catalog.pg_roles AS r WHERE r.oid = new_oid;
    IF new_name IS NULL THEN
        RAISE EXCEPTION 'the new owner was dropped' USING ERRCODE = 'PGR01';
    END IF;
    FOREACH relation IN ARRAY wanted LOOP
        SELECT n.nspname, c.relname INTO schema_name, relation_name
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = relation AND c.relowner = old_oid;
        CONTINUE WHEN NOT FOUND;
        EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', schema_name, relation_name, new_name);
        -- check at once: whichever table it was, it stays locked until the transaction ends
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = relation AND c.relowner = new_oid) THEN
            RAISE EXCEPTION 'a table was renamed in the meantime' USING ERRCODE = 'PGR03';
        END IF;
    END LOOP;
    IF EXISTS (
        SELECT
        FROM pg_catalog.pg_class AS c
        WHERE c.xmin = pg_current_xact_id()::xid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
          AND c.oid <> ALL (wanted)
          AND NOT EXISTS (
              SELECT
              FROM pg_catalog.pg_depend AS d
              WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND c.relkind = 'S'
                AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = ANY (wanted)
                AND d.deptype IN ('a', 'i')
          )
    ) OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = new_oid AND r.rolname = new_name) THEN
        RAISE EXCEPTION 'a table or a role was renamed in the meantime' USING ERRCODE = 'PGR03';
    END IF;
END
$reassign_some$
