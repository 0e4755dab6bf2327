-- How much does the history of this database take, how many drifts of this cluster has it, and how old is the oldest of these? One
-- row.
-- $1 text cluster; NULL: any
SELECT
    (
        SELECT coalesce(sum(pg_catalog.pg_total_relation_size(i.inhrelid)), 0)::bigint
        FROM pg_catalog.pg_inherits AS i
        WHERE i.inhparent = 'pgrole.drift_history'::regclass
    ) AS bytes,
    count(*) AS rows,
    min(h.last_at) AS oldest
FROM pgrole.drift_history AS h
WHERE (h.cluster <> $1) IS NOT TRUE
