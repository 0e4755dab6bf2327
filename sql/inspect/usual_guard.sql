-- As guard.sql, in the usual case. Prepared once for each connection, because every DO is planned again. Otherwise fails with
-- 3F000, though guard.sql may succeed. LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE comes first.
-- The relation usual_schema is usual_schema.sql.
PREPARE pgrole_guard AS
SELECT (CASE WHEN u.usual THEN 'pg_catalog' ELSE '"pgrole with its usual owner and privileges"' END)::pg_catalog.regnamespace
FROM usual_schema AS u
