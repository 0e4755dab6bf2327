-- Which settings suspend changes in the home database and in these others? NULL: any database, any role. As
-- sql/inspect/suspended.sql, whose reader is the controller.
-- Names are sent as bytes: another database may have written them in its encoding.
-- $1 bytea[] names of databases   $2 bytea the name of the controller's role; NULL: whichever role it has
SELECT
    textsend(d.datname::text) AS database, textsend(r.rolname::text) AS role,
    s.setdatabase = 0 OR d.datname = pg_catalog.current_database() AS of_home
FROM pg_catalog.pg_db_role_setting AS s
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
WHERE (s.setdatabase = 0 OR d.datname = pg_catalog.current_database() OR textsend(d.datname::text) = ANY ($1::bytea[]))
  AND ($2::bytea IS NULL OR s.setrole = 0 OR textsend(r.rolname::text) = $2::bytea)
  AND CASE WHEN pg_catalog.pg_column_size(s.setconfig) <= 65536 THEN EXISTS (
      SELECT
      FROM pg_catalog.unnest(s.setconfig) AS c (setting)
      WHERE c.setting LIKE 'pgrole.suspend=%'
        AND pg_catalog.lower(pg_catalog.substr(c.setting, 16)) IN ('on', 'true', 'yes', '1')
  ) ELSE false END
ORDER BY of_home DESC, d.datname, r.rolname
LIMIT 10
