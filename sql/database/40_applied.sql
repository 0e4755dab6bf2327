-- Since version 4. What was last applied of each role's privileges in this database: written by the transaction that repairs.
-- `digest` tells a drift from a changed declaration, what waits for its first grant, and for which oid on which server it was
-- stored. `holder`: uid of the PgRole, and the name of this database: a copy of a database takes over none of this.
CREATE TABLE IF NOT EXISTS pgrole.applied (
    role_oid      oid PRIMARY KEY,
    role_name     text COLLATE "C" NOT NULL,
    holder        text NOT NULL DEFAULT '',
    digest        text NOT NULL,
    drift_count   bigint NOT NULL DEFAULT 0,
    last_drift_at timestamptz,
    last_drift    jsonb CHECK (pg_column_size(last_drift) <= 2048),
    updated_at    timestamptz NOT NULL DEFAULT now()
);

-- The last handled approval of reported drift: the value of annotation pgrole.dev/approve.
ALTER TABLE pgrole.applied ADD COLUMN IF NOT EXISTS approve_handled text NOT NULL DEFAULT '';

-- Stores the digest, and adds `drifted` corrected drifts, the last of which is described by `drift`. Drifts of another role that
-- had this oid, of another object, and of the database that this one was copied from, do not count. Writes nothing if nothing
-- differs.
CREATE OR REPLACE FUNCTION pgrole.store_applied(
    of_role oid, named text, of_holder text, new_digest text, drifted bigint DEFAULT 0, drift jsonb DEFAULT NULL
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO pgrole.applied AS a (role_oid, role_name, holder, digest, drift_count, last_drift_at, last_drift)
    VALUES (
        of_role, named, of_holder, new_digest, drifted, CASE WHEN drifted > 0 THEN clock_timestamp() END,
        CASE WHEN pg_column_size(drift) <= 2048 THEN drift END
    )
    ON CONFLICT (role_oid) DO UPDATE SET
        role_name = excluded.role_name,
        holder = excluded.holder,
        digest = excluded.digest,
        drift_count = excluded.drift_count
            + CASE WHEN (a.role_name, a.holder) = (excluded.role_name, excluded.holder) THEN a.drift_count ELSE 0 END,
        last_drift_at = CASE
            WHEN drifted > 0 THEN excluded.last_drift_at
            WHEN (a.role_name, a.holder) = (excluded.role_name, excluded.holder) THEN a.last_drift_at
        END,
        last_drift = CASE
            WHEN drifted > 0 THEN excluded.last_drift
            WHEN (a.role_name, a.holder) = (excluded.role_name, excluded.holder) THEN a.last_drift
        END,
        updated_at = clock_timestamp()
    WHERE drifted > 0 OR (a.role_name, a.holder, a.digest) <> (excluded.role_name, excluded.holder, excluded.digest)
$$;

-- Stores the approval by which this transaction corrects a drift, for a role that has a row.
CREATE OR REPLACE FUNCTION pgrole.store_approval(of_role oid, of_holder text, handled text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE pgrole.applied SET approve_handled = handled WHERE role_oid = of_role AND holder = of_holder
$$;

-- Deletes the rows of dropped roles, and keeps those of renamed ones. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION pgrole.prune_applied() RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH pruned AS (
        DELETE FROM pgrole.applied AS a
        WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = a.role_oid)
        RETURNING 1
    )
    SELECT count(*) FROM pruned
$$;
