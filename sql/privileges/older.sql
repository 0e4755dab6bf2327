-- Which of these objects existed when what the role beside it declares was last applied? One row for each pair. A dependency on the
-- schema is written when an object is created, replaced or moved there, and what refers to a schema or role is younger than it is.
-- The rest is left out, even if it may be older.
-- $1 oid[] roles, with $2 oid[] catalogs and $3 oid[] objects in parallel
SELECT w.role, w.catalog, w.oid
FROM unnest($1::oid[], $2::oid[], $3::oid[]) AS w (role, catalog, oid)
JOIN pgrole.applied AS a ON a.role_oid = w.role
WHERE CASE w.catalog
    WHEN 'pg_catalog.pg_database'::regclass THEN true
    WHEN 'pg_catalog.pg_namespace'::regclass THEN EXISTS (
        SELECT FROM pg_catalog.pg_depend AS d
        WHERE (d.refclassid, d.refobjid) = (w.catalog, w.oid) AND (age(d.xmin) > age(a.xmin) OR age(d.xmin) < 0)
    )
    WHEN 'pg_catalog.pg_authid'::regclass THEN EXISTS (
        SELECT FROM pg_catalog.pg_shdepend AS d
        WHERE (d.refclassid, d.refobjid) = (w.catalog, w.oid) AND (age(d.xmin) > age(a.xmin) OR age(d.xmin) < 0)
    )
    ELSE EXISTS (
        SELECT FROM pg_catalog.pg_depend AS d
        WHERE (d.classid, d.objid, d.objsubid) = (w.catalog, w.oid, 0) AND d.refclassid = 'pg_catalog.pg_namespace'::regclass
          AND (age(d.xmin) > age(a.xmin) OR age(d.xmin) < 0)
    )
END
