-- Was something that is stored as applied written on another server, for a role that has another oid here? One row.
-- $1 text as in move_applied.sql
SELECT EXISTS (
    SELECT
    FROM pgrole.applied AS a
    WHERE a.digest LIKE '% @%' AND a.digest NOT LIKE '% @' || $1 || ':%'
      AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = a.role_oid AND r.rolname::text = a.role_name
      )
) AS foreign
