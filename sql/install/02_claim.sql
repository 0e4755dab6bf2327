-- The object and cluster that own a role, and the state last applied to it. One row per role name.
CREATE TABLE IF NOT EXISTS pgrole.claim (
    role_name         text COLLATE "C" PRIMARY KEY,
    role_oid          oid NOT NULL,
    system_identifier bigint NOT NULL,
    cluster           text NOT NULL,
    namespace         text NOT NULL,
    namespace_uid     text NOT NULL,
    object            text NOT NULL,
    object_uid        text NOT NULL,
    applied           text NOT NULL DEFAULT '',
    drift_count       bigint NOT NULL DEFAULT 0,
    last_drift_at     timestamptz,
    last_drift_fields text[],
    released_at       timestamptz
);

-- Since version 2. Password: the Secret and version it was read from, the digest of the verifier that was set, the time it
-- was generated, and the last handled rotation request. Also the connection Secret as last written.
ALTER TABLE pgrole.claim
    ADD COLUMN IF NOT EXISTS password_source   text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS password_digest   text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS rotated_at        timestamptz,
    ADD COLUMN IF NOT EXISTS rotate_handled    text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS connection_secret text NOT NULL DEFAULT '';

-- Since version 4. The last reconciled generations of the PgRole and of its PgServer (by uid; empty for the server of
-- PGROLE_DSN). A process that cannot reach Kubernetes enforces only objects that it knows at these generations.
ALTER TABLE pgrole.claim
    ADD COLUMN IF NOT EXISTS object_generation bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS server_uid        text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS server_generation bigint NOT NULL DEFAULT 0;

-- Since version 4. Privileges by database, as JSON: those that the spec declares, and those that earlier ones declared and
-- that are not revoked yet. Another object that takes the claim over inherits them, so that they are revoked.
ALTER TABLE pgrole.claim
    ADD COLUMN IF NOT EXISTS privileges text NOT NULL DEFAULT '';

-- Since version 4. The last handled approval of reported drift: the value of annotation pgrole.dev/approve.
ALTER TABLE pgrole.claim
    ADD COLUMN IF NOT EXISTS approve_handled text NOT NULL DEFAULT '';

CREATE INDEX IF NOT EXISTS claim_object ON pgrole.claim (cluster, namespace, object);

-- Two objects never hold the same role. An oid of 0 means that the role was dropped and its oid reused. If version 1 let two
-- claims hold a role, the claim with the role's name keeps it.
UPDATE pgrole.claim AS c
SET role_oid = 0
WHERE c.role_oid <> 0 AND c.released_at IS NULL AND EXISTS (
    SELECT
    FROM pgrole.claim AS o
    LEFT JOIN pg_roles AS r ON r.oid = o.role_oid
    WHERE (o.role_oid, o.system_identifier) = (c.role_oid, c.system_identifier) AND o.released_at IS NULL
      AND ((o.role_name = r.rolname::text) IS TRUE, c.role_name) > ((c.role_name = r.rolname::text) IS TRUE, o.role_name)
);
DROP INDEX IF EXISTS pgrole.claim_role_oid;
CREATE UNIQUE INDEX IF NOT EXISTS claim_holds ON pgrole.claim (role_oid, system_identifier)
    WHERE released_at IS NULL AND role_oid <> 0;

-- Announces claims that were released or transferred, so that objects denied because of them are reconciled again.
CREATE OR REPLACE FUNCTION pgrole.announce_claim() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    many CONSTANT integer := 100;
    names text[];
BEGIN
    IF TG_OP = 'DELETE' THEN
        names := ARRAY(SELECT g.role_name FROM gone AS g);
    ELSIF TG_OP = 'UPDATE' THEN
        names := ARRAY(
            SELECT g.role_name
            FROM gone AS g
            LEFT JOIN come AS c ON c.role_name = g.role_name
            WHERE c.role_name IS NULL
               OR (g.released_at IS NULL AND c.released_at IS NOT NULL)
               OR (g.cluster, g.namespace, g.namespace_uid, g.object, g.object_uid)
                   <> (c.cluster, c.namespace, c.namespace_uid, c.object, c.object_uid)
        );
    END IF;
    IF TG_OP = 'TRUNCATE' OR cardinality(names) > many THEN
        PERFORM pg_notify('pgrole', '{"op":"many"}');
    ELSE
        PERFORM pg_notify('pgrole', pgrole.message('claim', NULL, n, NULL)) FROM unnest(names) AS n;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER announce_update AFTER UPDATE ON pgrole.claim
    REFERENCING OLD TABLE AS gone NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce_claim();
CREATE OR REPLACE TRIGGER announce_delete AFTER DELETE ON pgrole.claim
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce_claim();
CREATE OR REPLACE TRIGGER announce_truncate AFTER TRUNCATE ON pgrole.claim
    FOR EACH STATEMENT EXECUTE FUNCTION pgrole.announce_claim();
-- also where session_replication_role is replica
ALTER TABLE pgrole.claim
    ENABLE ALWAYS TRIGGER announce_update,
    ENABLE ALWAYS TRIGGER announce_delete,
    ENABLE ALWAYS TRIGGER announce_truncate;
