-- May this role read which transactions wrote the rows of pg_authid? One row.
SELECT
    pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'oid', 'SELECT')
    AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'xmin', 'SELECT') AS sees
