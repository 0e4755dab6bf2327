-- Which objects belong to extensions? One row. `members`: of each, the oids of its catalog and its own, in 4 bytes each.
SELECT string_agg(oidsend(d.classid) || oidsend(d.objid), ''::bytea) AS members
FROM pg_catalog.pg_extension AS e
JOIN pg_catalog.pg_depend AS d
    ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.refobjsubid = 0 AND d.deptype = 'e'
WHERE d.classid IN (
    'pg_class'::regclass, 'pg_proc'::regclass, 'pg_namespace'::regclass, 'pg_type'::regclass, 'pg_language'::regclass,
    'pg_foreign_data_wrapper'::regclass, 'pg_foreign_server'::regclass
)
