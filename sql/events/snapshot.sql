-- Which transactions have ended by now? One row.
SELECT pg_catalog.pg_current_snapshot()::text AS snapshot
