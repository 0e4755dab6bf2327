-- Which object of which cluster owns a role, and what was last brought into it: one row a role name.
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

CREATE INDEX IF NOT EXISTS claim_object ON pgrole.claim (cluster, namespace, object);
CREATE INDEX IF NOT EXISTS claim_role_oid ON pgrole.claim (role_oid);
