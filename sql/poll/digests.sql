-- Which digest does each role have, over everything that a PgRole can declare?
-- One row per 50,000 roles, ordered by oid: `digests` holds 12 bytes per role (oid, digest), `names` the names in the same
-- order, separated by NUL. If no transaction with an id has ended since the last round, nothing can have changed: then the
-- result is one row in which both are NULL.
-- It reads only PostgreSQL's own catalogs. It hashes whole rows, so that one query fits every version. Of values too long to
-- decompress in every round, it hashes the row version: any role that can log in can store values of any length.
-- Relation verifier: sql/sources.
-- $1 text the snapshot of the last round   $2 bigint the key of the digests
SELECT
    now.snapshot, pg_catalog.pg_postmaster_start_time() AS started_at, pg_catalog.pg_is_in_recovery() AS in_recovery,
    every.digests, every.names
-- OFFSET 0: taken once
FROM (SELECT pg_catalog.pg_current_snapshot()::text AS snapshot OFFSET 0) AS now
LEFT JOIN LATERAL (
    SELECT
        string_agg(pg_catalog.oidsend(n.oid) || pg_catalog.int8send(d.digest), ''::bytea ORDER BY n.oid) AS digests,
        string_agg(textsend(n.rolname::text), '\x00'::bytea ORDER BY n.oid) AS names
    FROM (SELECT r.oid, r.rolname, row_number() OVER (ORDER BY r.oid) AS number FROM pg_catalog.pg_roles AS r) AS n
    JOIN (
        SELECT p.role, bit_xor(p.hash) AS digest
        FROM (
            SELECT r.oid AS role, hash_record_extended(ROW(
                r.oid, r.rolname, r.rolcanlogin, r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolinherit,
                r.rolreplication, r.rolbypassrls, r.rolconnlimit, r.rolvaliduntil
            ), $2::bigint) AS hash
            FROM pg_catalog.pg_roles AS r
            UNION ALL
            SELECT m.member, hash_record_extended(m.*, $2::bigint) FROM pg_catalog.pg_auth_members AS m
            UNION ALL
            SELECT s.setrole, CASE
                WHEN pg_column_compression(s.setconfig) IS NULL AND pg_column_size(s.setconfig) <= 16384
                THEN hash_record_extended(s.*, $2::bigint)
                ELSE hash_record_extended(ROW(s.setrole, s.setdatabase, s.xmin, pg_column_size(s.setconfig)), $2::bigint)
            END
            FROM pg_catalog.pg_db_role_setting AS s
            WHERE s.setrole <> 0
            UNION ALL
            SELECT c.objoid, CASE WHEN octet_length(c.description) <= 8192 THEN hash_record_extended(c.*, $2::bigint)
                ELSE hash_record_extended(ROW(c.objoid, c.xmin, octet_length(c.description)), $2::bigint) END
            FROM pg_catalog.pg_shdescription AS c
            WHERE c.classoid = 'pg_catalog.pg_authid'::regclass
            UNION ALL
            SELECT v.role, hash_record_extended(
                ROW(v.role, octet_length(v.verifier), substring(v.verifier FOR 4096)), $2::bigint
            )
            FROM verifier AS v
        ) AS p
        GROUP BY p.role
    ) AS d ON d.role = n.oid
    WHERE now.snapshot IS DISTINCT FROM $1::text
    GROUP BY n.number / 50000
    ORDER BY min(n.oid)
) AS every ON true
