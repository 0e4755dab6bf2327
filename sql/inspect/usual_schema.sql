-- Does schema pgrole have its usual owner and privileges? One row: true only if the session's role owns it, no one else has more
-- than pg_monitor's USAGE, and the session acts as the role that it logged in as.
-- The session's search_path must be "pg_catalog, pg_temp".
SELECT current_user = session_user AND EXISTS (
    SELECT
    FROM pg_catalog.pg_namespace AS n
    WHERE n.nspname = 'pgrole' AND pg_catalog.pg_get_userbyid(n.nspowner) = session_user
      AND (
          n.nspacl = pg_catalog.acldefault('n', n.nspowner)
          OR n.nspacl = pg_catalog.acldefault('n', n.nspowner)
              || pg_catalog.makeaclitem('pg_monitor'::pg_catalog.regrole, n.nspowner, 'USAGE', false)
      )
) AS usual
