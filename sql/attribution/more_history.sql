-- Does the history have more drifts than it should? One row.
-- $1 bigint
SELECT EXISTS (SELECT FROM pgrole.drift_history OFFSET $1) AS more
