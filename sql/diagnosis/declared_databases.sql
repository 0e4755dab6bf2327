-- In which databases do claims that are held declare privileges? At most 501 names.
SELECT DISTINCT textsend(pg_catalog."left"(k.name, 63)) AS name
FROM pgrole.claim AS c
CROSS JOIN LATERAL pg_catalog.jsonb_object_keys(
    CASE WHEN c.privileges LIKE '{%' THEN c.privileges::jsonb ELSE '{}' END
) AS k (name)
WHERE c.privileges <> '' AND c.released_at IS NULL
ORDER BY 1
LIMIT 501
