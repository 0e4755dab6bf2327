-- Does a role own anything here, or of what the server shares, and how many tables, views and sequences? Default
-- privileges and user mappings belong to it, but are no more than privileges: REASSIGN OWNED leaves them, DROP OWNED takes
-- them away.
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
