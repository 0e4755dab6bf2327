-- Which columns do these tables have? One row for each table. $1 oid[] tables
SELECT c.attrelid AS relation, array_agg(textsend(c.attname::text)) AS columns
FROM pg_catalog.pg_attribute AS c
WHERE c.attrelid = ANY ($1::oid[]) AND c.attnum > 0 AND NOT c.attisdropped
GROUP BY c.attrelid
