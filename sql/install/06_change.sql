-- Functions that a transaction that changes roles calls in addition to the role DDL.
-- PGR01: the state that the caller read has changed; nothing is changed, and the caller reads it again.

-- The name of lock_changes before version 4: controllers of 0.2.0 call it during an upgrade, and the command `claims`, for
-- which version 3 will do. Its callers may lack EXECUTE on lock_changes, so it does not call that.
CREATE OR REPLACE FUNCTION pgrole.take_turn() RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    LOCK TABLE pgrole.turn_to_change IN SHARE UPDATE EXCLUSIVE MODE
$$;

-- Verifies that the role read under a name still has that oid (NULL: does not exist), that no one claims it under another
-- name, and that its claim still has that holder.
CREATE OR REPLACE FUNCTION pgrole.expect(claimed_name text, seen_name text, seen_oid oid, holder text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oid_now    oid  := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = seen_name::name);
    holder_now text := (SELECT c.object_uid FROM pgrole.claim AS c WHERE c.role_name = claimed_name);
    other      text := (
        SELECT c.role_name
        FROM pgrole.claim AS c, pg_control_system() AS s
        WHERE c.role_oid = seen_oid AND c.role_oid <> 0 AND c.system_identifier = s.system_identifier
          AND c.released_at IS NULL AND c.role_name <> claimed_name
    );
BEGIN
    IF oid_now IS DISTINCT FROM seen_oid THEN
        RAISE EXCEPTION 'role "%" changed since it was read', seen_name USING ERRCODE = 'PGR01';
    END IF;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'role "%" is claimed under another name, "%"', seen_name, other USING ERRCODE = 'PGR01';
    END IF;
    IF holder_now IS DISTINCT FROM holder THEN
        RAISE EXCEPTION 'the claim on role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Claims the role of that name for this object and stores the applied state. The role must have `expected_oid`; 0: this
-- transaction must have created it, outside of any savepoint, if pg_authid is readable.
CREATE OR REPLACE FUNCTION pgrole.take_claim(
    claimed_name text, expected_oid oid, cluster text, namespace text, namespace_uid text, object text, object_uid text,
    applied text, drifted text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    own   oid := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = claimed_name::name);
    taken integer;
BEGIN
    IF expected_oid <> 0 THEN
        own := CASE WHEN own = expected_oid THEN own END;
    ELSIF has_column_privilege('pg_catalog.pg_authid', 'oid', 'select')
        AND has_column_privilege('pg_catalog.pg_authid', 'xmin', 'select')
    THEN
        own := (SELECT a.oid FROM pg_authid AS a WHERE a.oid = own AND a.xmin = pg_current_xact_id()::xid);
        -- oids are reused: the role of the claim that had this oid was dropped
        UPDATE pgrole.claim AS c SET role_oid = 0
        WHERE c.role_oid = own AND c.role_oid <> 0 AND c.released_at IS NULL AND c.role_name <> claimed_name
          AND c.system_identifier = (SELECT s.system_identifier FROM pg_control_system() AS s);
    END IF;
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
    WHERE r.oid = own
    ON CONFLICT (role_name) DO UPDATE SET
        role_oid = excluded.role_oid,
        system_identifier = excluded.system_identifier,
        cluster = excluded.cluster,
        namespace = excluded.namespace,
        namespace_uid = excluded.namespace_uid,
        object = excluded.object,
        object_uid = excluded.object_uid,
        applied = excluded.applied,
        -- do not count the drifts of another object
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
        -- do not keep the sources of another object's password
        password_source = CASE WHEN (c.cluster, c.object_uid) = (excluded.cluster, excluded.object_uid) THEN c.password_source ELSE '' END,
        connection_secret = CASE WHEN (c.cluster, c.object_uid) = (excluded.cluster, excluded.object_uid) THEN c.connection_secret ELSE '' END,
        released_at = NULL;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken <> 1 THEN
        RAISE EXCEPTION 'role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Releases the claim of a deleted object. The role stays, and the claim records whose it was.
CREATE OR REPLACE FUNCTION pgrole.release_claim(claimed_name text, holder text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE pgrole.claim SET released_at = now()
    WHERE role_name = claimed_name AND object_uid = holder AND released_at IS NULL
$$;

-- Deletes the claim on a role that was dropped with its object.
CREATE OR REPLACE FUNCTION pgrole.forget_claim(claimed_name text, holder text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM pgrole.claim WHERE role_name = claimed_name AND object_uid = holder
$$;

-- Stores the state of the role's password in the claim. Controllers of 0.2.0 call it by this name.
CREATE OR REPLACE FUNCTION pgrole.keep_credential(
    claimed_name text, holder text, source text, digest text, rotated timestamptz, rotate text, connection text
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE pgrole.claim AS c
    SET password_source = source, password_digest = keep_credential.digest, rotated_at = rotated, rotate_handled = rotate,
        connection_secret = connection
    WHERE c.role_name = claimed_name AND c.object_uid = holder AND c.released_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim on role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Since version 4. Stores the last reconciled generations of the object and of its PgServer in the claim.
CREATE OR REPLACE FUNCTION pgrole.act_on(
    claimed_name text, holder text, generation bigint, of_server text, generation_of_server bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE pgrole.claim AS c
    SET object_generation = generation, server_uid = of_server, server_generation = generation_of_server
    WHERE c.role_name = claimed_name AND c.object_uid = holder AND c.released_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim on role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Since version 4. Stores in the claim what the object declares its role may do, and what it declared before.
CREATE OR REPLACE FUNCTION pgrole.keep_privileges(claimed_name text, holder text, privileges text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE pgrole.claim AS c
    SET privileges = keep_privileges.privileges
    WHERE c.role_name = claimed_name AND c.object_uid = holder AND c.released_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim on role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Since version 4. Stores in the claim the approval by which this transaction corrects a drift. `before`: the one handled last;
-- if that is another one now, someone else has acted on an approval since the claim was read.
CREATE OR REPLACE FUNCTION pgrole.keep_approval(claimed_name text, holder text, before text, handled text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE pgrole.claim AS c
    SET approve_handled = handled
    WHERE c.role_name = claimed_name AND c.object_uid = holder AND c.released_at IS NULL AND c.approve_handled = before;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim on role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Since version 4. Verifies that the claim still has this holder, applied state and generations, before a process that cannot
-- reach Kubernetes corrects a drift.
CREATE OR REPLACE FUNCTION pgrole.expect_applied(
    claimed_name text, holder text, digest text, generation bigint, of_server text, generation_of_server bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM pgrole.claim AS c
        WHERE c.role_name = claimed_name AND c.object_uid = holder AND c.released_at IS NULL AND c.applied = digest
          AND (c.object_generation, c.server_uid, c.server_generation) = (generation, of_server, generation_of_server)
    ) THEN
        RAISE EXCEPTION 'the applied state of role "%" changed since it was read', claimed_name USING ERRCODE = 'PGR01';
    END IF;
END
$$;

-- Since version 4. Fails with PGR05 while a superuser has set pgrole.suspend on this database or on the controller's role.
-- See also sql/inspect/suspended.sql.
CREATE OR REPLACE FUNCTION pgrole.check_not_suspended() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT
        FROM pg_db_role_setting AS s
        WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
          AND s.setrole IN (0, (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = session_user))
          AND CASE WHEN pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
              SELECT
              FROM unnest(s.setconfig) AS c (setting)
              WHERE c.setting LIKE 'pgrole.suspend=%' AND lower(substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
          ) ELSE false END
    ) THEN
        RAISE EXCEPTION 'pgrole.suspend is on for database "%", or for the controller''s role', current_database() USING ERRCODE = 'PGR05';
    END IF;
END
$$;
