-- Which databases of this server are recorded as the home of schema pgrole? One row.
-- Only superusers can record one, and roles that a superuser granted SET on the parameter: not the owner of a database, and
-- not roles with CREATEROLE. Names are sent as bytes: another database may have written them in its encoding.
-- Very large settings of other databases are not read: their owners can add some. The owner of a home can hide it that way from a
-- second installation.
WITH recorded AS (
    SELECT d.oid, d.datname
    FROM pg_catalog.pg_db_role_setting AS s JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
    WHERE s.setrole = 0
      AND CASE WHEN d.datname = pg_catalog.current_database() OR pg_catalog.pg_column_size(s.setconfig) <= 65536
          THEN 'pgrole.home=on' = ANY (s.setconfig) ELSE false END
),
own AS (
    SELECT d.oid, d.datname, d.oid IN (SELECT r.oid FROM recorded AS r) AS recorded
    FROM pg_catalog.pg_database AS d
    WHERE d.datname = pg_catalog.current_database()
)
SELECT
    textsend(format('%I', o.datname)) AS database,
    o.recorded,
    -- if two were recorded concurrently, only one of them is refused
    ARRAY(
        SELECT textsend(format('%I', r.datname)) FROM recorded AS r
        WHERE r.oid < o.oid OR (r.oid > o.oid AND NOT o.recorded)
        ORDER BY r.oid
    ) AS elsewhere,
    (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user) AS may_record
FROM own AS o
