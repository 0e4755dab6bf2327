-- Part of sql/privileges/facts.sql: which values does search_path have in the server's configuration files, those of ALTER SYSTEM
-- included? Any of them may be in effect.
SELECT ARRAY['search_path=' || f.setting]
FROM pg_catalog.pg_file_settings AS f
WHERE $2::boolean AND lower(f.name) = 'search_path' AND f.setting IS NOT NULL
