-- After a logical restore, roles have other oids. The records of another server move to the roles of the same names; those without
-- such a role are deleted. Records of this server stay.
-- Two roles may have exchanged their oids: every row is deleted before the first one is inserted (ORDER BY).
-- $1 text the system identifier of this server (postgres/privileges/stored_state.py)
WITH moved AS (
    DELETE FROM pgrole.applied AS a
    WHERE a.digest LIKE '% @%' AND a.digest NOT LIKE '% @' || $1 || ':%'
      AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = a.role_oid AND r.rolname::text = a.role_name
      )
    RETURNING a.*
)
INSERT INTO pgrole.applied (
    role_oid, role_name, holder, digest, drift_count, last_drift_at, last_drift, updated_at, approve_handled
)
SELECT
    r.oid, m.role_name, m.holder, m.digest, m.drift_count, m.last_drift_at, m.last_drift, m.updated_at, m.approve_handled
FROM (SELECT o.* FROM moved AS o ORDER BY o.role_name OFFSET 0) AS m
JOIN pg_catalog.pg_roles AS r ON r.rolname::text = m.role_name
ON CONFLICT (role_oid) DO NOTHING
