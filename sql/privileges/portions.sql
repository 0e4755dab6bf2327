-- Where does a read of all objects pause? One row: the oids that end portions of $1 objects, without the last portion; and the
-- snapshot. A row of either catalog has at least 180 bytes, so the objects of a small one need not be counted.
-- `largest_acl`: number of entries in the largest ACL of a relation. It is limited, since pg_class has no TOAST table.
-- $1 bigint maximum number of objects in a portion
SELECT
    pg_current_snapshot()::text AS snapshot,
    coalesce((
        SELECT max(cardinality(c.relacl)) FROM pg_catalog.pg_class AS c WHERE c.oid >= 16384 AND c.relpersistence <> 't'
    ), 0) AS largest_acl,
    CASE
        WHEN pg_relation_size('pg_catalog.pg_class') + pg_relation_size('pg_catalog.pg_proc') <= 180 * $1::bigint THEN '{}'
        ELSE ARRAY(
            SELECT n.oid
            FROM (
                SELECT o.oid, row_number() OVER (ORDER BY o.oid) AS place
                FROM (
                    SELECT c.oid
                    FROM pg_catalog.pg_class AS c
                    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid >= 16384 AND c.relpersistence <> 't'
                    UNION ALL
                    SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE p.oid >= 16384
                ) AS o
            ) AS n
            WHERE n.place % $1::bigint = 0
            ORDER BY n.oid
        )
    END::oid[] AS ends
