-- Does the history have more drifts of this cluster than it should? One row.
-- $1 bigint   $2 text cluster
SELECT EXISTS (SELECT FROM pgrole.drift_history AS h WHERE (h.cluster <> $2) IS NOT TRUE OFFSET $1) AS more
