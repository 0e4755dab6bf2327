-- What a transaction that changes roles calls beside the role DDL itself.
-- PGR01: what the caller had seen is no longer so; nothing is changed, it looks again.

-- Concurrent ALTER ROLE on one row fails with "tuple concurrently updated": those who ask for this first take turns.
CREATE OR REPLACE FUNCTION pgrole.take_turn() RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_advisory_xact_lock(8102098230143320033)
$$;

-- The role that was seen under a name still has that oid (NULL: there is none), and its claim still has that holder.
CREATE OR REPLACE FUNCTION pgrole.expect(claimed_name text, seen_name text, seen_oid oid, holder text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oid_now    oid  := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = seen_name::name);
    holder_now text := (SELECT c.object_uid FROM pgrole.claim AS c WHERE c.role_name = claimed_name);
BEGIN
    IF oid_now IS DISTINCT FROM seen_oid THEN
        RAISE EXCEPTION 'role "%" is not the one that was seen', seen_name USING ERRCODE = 'PGR01';
    END IF;
    IF holder_now IS DISTINCT FROM holder THEN
        RAISE EXCEPTION 'the claim of role "%" is not the one that was seen', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- The role, as it is now, belongs to this object, and this is what was brought into it.
CREATE OR REPLACE FUNCTION pgrole.take_claim(
    claimed_name text, cluster text, namespace text, namespace_uid text, object text, object_uid text,
    applied text, drifted text[]
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO pgrole.claim AS c (
        role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid, applied,
        drift_count, last_drift_at, last_drift_fields
    )
    SELECT r.rolname, r.oid, s.system_identifier,
           take_claim.cluster, take_claim.namespace, take_claim.namespace_uid, take_claim.object, take_claim.object_uid,
           take_claim.applied,
           (cardinality(drifted) > 0)::int,
           CASE WHEN cardinality(drifted) > 0 THEN now() END,
           CASE WHEN cardinality(drifted) > 0 THEN drifted END
    FROM pg_roles AS r, pg_control_system() AS s
    WHERE r.rolname = claimed_name::name
    ON CONFLICT (role_name) DO UPDATE SET
        role_oid = excluded.role_oid,
        system_identifier = excluded.system_identifier,
        cluster = excluded.cluster,
        namespace = excluded.namespace,
        namespace_uid = excluded.namespace_uid,
        object = excluded.object,
        object_uid = excluded.object_uid,
        applied = excluded.applied,
        -- another object's drifts are not this one's
        drift_count = excluded.drift_count
            + CASE WHEN (c.cluster, c.object_uid) = (excluded.cluster, excluded.object_uid) THEN c.drift_count ELSE 0 END,
        last_drift_at = CASE
            WHEN excluded.last_drift_at IS NOT NULL THEN excluded.last_drift_at
            WHEN (c.cluster, c.object_uid) = (excluded.cluster, excluded.object_uid) THEN c.last_drift_at
        END,
        last_drift_fields = CASE
            WHEN excluded.last_drift_at IS NOT NULL THEN excluded.last_drift_fields
            WHEN (c.cluster, c.object_uid) = (excluded.cluster, excluded.object_uid) THEN c.last_drift_fields
        END,
        released_at = NULL
$$;

-- The object is gone; its role stays, and the claim remembers for whom.
CREATE OR REPLACE FUNCTION pgrole.release_claim(claimed_name text, holder text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE pgrole.claim SET released_at = now()
    WHERE role_name = claimed_name AND object_uid = holder AND released_at IS NULL
$$;

-- The role is gone with its object.
CREATE OR REPLACE FUNCTION pgrole.forget_claim(claimed_name text, holder text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM pgrole.claim WHERE role_name = claimed_name AND object_uid = holder
$$;

REVOKE ALL ON FUNCTION pgrole.take_turn() FROM PUBLIC;
REVOKE ALL ON FUNCTION pgrole.expect(text, text, oid, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION pgrole.take_claim(text, text, text, text, text, text, text, text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION pgrole.release_claim(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION pgrole.forget_claim(text, text) FROM PUBLIC;
