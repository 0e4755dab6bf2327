-- Does a role own anything in this database or any shared object, and how many tables, views and sequences?
-- Default privileges and user mappings do not count: REASSIGN OWNED keeps them, and DROP OWNED drops them.
-- $1 oid role
SELECT
    EXISTS (
        SELECT
        FROM pg_catalog.pg_shdepend AS s
        WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = $1::oid AND s.deptype = 'o'
          AND s.dbid IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()))
          AND s.classid NOT IN (
              'pg_catalog.pg_default_acl'::regclass, 'pg_catalog.pg_user_mapping'::regclass,
              'pg_catalog.pg_auth_members'::regclass
          )
    ) AS anything,
    (
        SELECT count(*)
        FROM pg_catalog.pg_class AS c
        WHERE c.relowner = $1::oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
    ) AS relations
