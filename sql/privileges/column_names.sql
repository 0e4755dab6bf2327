-- Which columns do these tables have? One row for each table. NUL separates the names. A role can be granted privileges on system
-- columns, such as xmin. `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] tables
SELECT
    c.attrelid AS relation, string_agg(textsend(c.attname::text), '\x00'::bytea) AS columns,
    c.attrelid::bigint AS page_key, 250 + 70 * count(*) AS page_size
FROM pg_catalog.pg_attribute AS c
WHERE c.attrelid = ANY ($1::oid[]) AND c.attnum <> 0 AND NOT c.attisdropped
GROUP BY c.attrelid
