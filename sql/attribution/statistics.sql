-- In which schema is pg_stat_statements? No row unless its function is the extension's own.
SELECT textsend(n.nspname::text) AS schema
FROM pg_catalog.pg_extension AS e
JOIN pg_catalog.pg_depend AS d
    ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
JOIN pg_catalog.pg_proc AS p ON p.oid = d.objid
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE e.extname = 'pg_stat_statements' AND p.proname = 'pg_stat_statements' AND p.probin LIKE '%/pg_stat_statements'
  AND p.proargtypes[0] = 'boolean'::regtype AND has_function_privilege(p.oid, 'EXECUTE')
  AND has_schema_privilege(n.oid, 'USAGE')
