-- Which databases of this server are recorded as the home of schema pgrole? One row.
-- Nobody but a superuser can record one, or a role that a superuser granted SET on that parameter: not the owner of a
-- database, nor who may create roles. Names come as bytes: another database may have written them in its encoding.
WITH recorded AS (
    SELECT d.oid, d.datname
    FROM pg_catalog.pg_db_role_setting AS s JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
    WHERE s.setrole = 0 AND 'pgrole.home=on' = ANY (s.setconfig)
),
own AS (
    SELECT d.oid, d.datname, d.oid IN (SELECT r.oid FROM recorded AS r) AS recorded
    FROM pg_catalog.pg_database AS d
    WHERE d.datname = pg_catalog.current_database()
)
SELECT
    textsend(format('%I', o.datname)) AS database,
    o.recorded,
    -- two that were recorded at the same moment do not refuse each other
    ARRAY(
        SELECT textsend(format('%I', r.datname)) FROM recorded AS r
        WHERE r.oid < o.oid OR (r.oid > o.oid AND NOT o.recorded)
        ORDER BY r.oid
    ) AS elsewhere,
    (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user) AS may_record
FROM own AS o
