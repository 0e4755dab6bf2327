-- Where does a read of all objects pause, if their names are too long for one row? One row: the oids that end portions of $1
-- objects, without the last portion.
-- $1 bigint maximum number of objects in a portion
SELECT
    ARRAY(
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
    )::oid[] AS ends
