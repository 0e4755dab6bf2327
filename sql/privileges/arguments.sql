-- Which types of input arguments do these routines have? One row for each. $1 oid[] routines
SELECT p.oid, textsend(coalesce(a.arguments, '')) AS arguments
FROM pg_catalog.pg_proc AS p
CROSS JOIN LATERAL (
    SELECT string_agg(pg_catalog.format_type(t.type, NULL), ', ' ORDER BY t.place) AS arguments
    FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t (type, place)
) AS a
WHERE p.oid = ANY ($1::oid[])
