-- Which of these objects are relations to be locked, so that their ACLs can be changed? Otherwise a concurrent ALTER TABLE fails
-- with "tuple concurrently updated". One row: names of tables for LOCK TABLE, or NULL; and statements that lock others, or NULL.
-- For a view, LOCK TABLE locks the tables that it reads, too, as its owner, who often may not; and it refuses all other kinds. But
-- to remove a comment takes the same lock, and changes nothing where there is none: others are left out, as are relations that
-- the controller's role may not lock. Without track_counts no one could tell that a comment came in between.
-- The setting pgrole.objects: oid[] relations and other objects, which are left out.
SELECT
    string_agg('ONLY ' || c.oid::regclass::text, ', ' ORDER BY c.oid) FILTER (
        WHERE c.relkind IN ('r', 'p') AND pg_catalog.has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')
    ) AS names,
    string_agg(
        format('COMMENT ON %s %s IS NULL', CASE c.relkind
            WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'SEQUENCE'
        END, c.oid::regclass), '; ' ORDER BY c.oid
    ) FILTER (
        WHERE c.relkind IN ('v', 'm', 'f', 'S') AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
          AND pg_catalog.current_setting('track_counts')::boolean
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_description AS d
              WHERE (d.objoid, d.classoid, d.objsubid) = (c.oid, 'pg_catalog.pg_class'::regclass, 0)
              OFFSET 0 -- by index
          )
    ) AS others
FROM pg_catalog.pg_class AS c
WHERE c.oid = ANY (current_setting('pgrole.objects')::oid[])
