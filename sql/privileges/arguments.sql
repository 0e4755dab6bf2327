-- Which types of input arguments do these routines have? One row for each distinct list of types, at most 15,000: `routines` and
-- `types` have the oids of routines with that list, and of its types (acl_rows.numbers). And one row for each of these types, at most
-- 5,000. So, with their overhead, an answer has at most 15,000 lists of 612 bytes and 5,000 names of 1,000, whatever a tenant creates.
-- $1 oid[] routines   $2 oid[] other types
WITH listed AS MATERIALIZED (
    SELECT '\x01'::bytea || string_agg(oidsend(p.oid), ''::bytea) AS routines, p.proargtypes AS types
    FROM pg_catalog.pg_proc AS p
    WHERE p.oid = ANY ($1::oid[])
    GROUP BY p.proargtypes
    LIMIT 15000
)
SELECT
    l.routines, NULL::oid AS type, NULL::bytea AS name,
    (
        SELECT '\x01'::bytea || string_agg(oidsend(t.type), ''::bytea ORDER BY t.place)
        FROM unnest(l.types::oid[]) WITH ORDINALITY AS t (type, place)
    ) AS types
FROM listed AS l
UNION ALL
SELECT NULL, n.type, textsend(pg_catalog.format_type(n.type, NULL)), NULL
FROM (
    SELECT unnest(l.types::oid[]) AS type FROM listed AS l UNION SELECT unnest($2::oid[]) LIMIT 5000
) AS n
