-- May this role read pg_authid? One row.
SELECT has_table_privilege('pg_catalog.pg_authid', 'SELECT') AS sees
