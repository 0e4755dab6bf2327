-- Which PgRoles hold these roles, and what do they declare? Privileges longer than a claim may hold, or beyond 16 MiB in all, are
-- NULL. Lock the table first (postgres/trusted_schema.py). `page_key`, `page_size`: postgres/answer_pages.py.
-- $1 oid[] roles   $2 oid[] the roles whose declarations are asked for
SELECT
    c.role_oid AS role, textsend(left(c.namespace, 253)) AS namespace, textsend(left(c.object, 253)) AS object,
    CASE WHEN c.bytes <= 1048576 AND c.total <= 16777216 THEN textsend(c.privileges) END AS privileges,
    row_number() OVER (ORDER BY c.role_oid) AS page_key, 1000 + least(c.bytes, 1048576) AS page_size
FROM (
    SELECT
        d.role_oid, d.namespace, d.object, p.privileges, octet_length(p.privileges) AS bytes,
        sum(octet_length(p.privileges)) OVER (ORDER BY d.role_oid) AS total
    FROM pgrole.claim AS d
    CROSS JOIN LATERAL (SELECT CASE WHEN d.role_oid = ANY ($2::oid[]) THEN coalesce(to_jsonb(d) ->> 'privileges', '') ELSE '' END AS privileges OFFSET 0) AS p -- since version 4
    WHERE d.role_oid = ANY ($1::oid[]) AND d.released_at IS NULL AND d.role_oid <> 0
      AND d.system_identifier = (SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s)
) AS c
ORDER BY c.role_oid
LIMIT 20000
