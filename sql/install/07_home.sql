-- Claims are in one database, but roles are global: the database of schema pgrole is recorded where every database sees it.
-- Only superusers can set a parameter unknown to PostgreSQL, so the record can be trusted.
DO $$
DECLARE
    other text := (
        -- another database may have written the name in its encoding
        SELECT encode(textsend(d.datname::text), 'escape')
        FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
        -- as sql/inspect/home.sql
        WHERE s.setrole = 0 AND d.datname <> current_database()
          AND CASE WHEN pg_column_size(s.setconfig) <= 65536 THEN 'pgrole.home=on' = ANY (s.setconfig) ELSE false END
        LIMIT 1
    );
BEGIN
    IF EXISTS (
        SELECT
        FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
        WHERE s.setrole = 0
          AND CASE WHEN d.datname = current_database() THEN 'pgrole.home=on' = ANY (s.setconfig) ELSE false END
    ) THEN
        RETURN;
    END IF;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'schema pgrole of this server is in database "%"', other USING ERRCODE = 'duplicate_schema';
    END IF;
    IF (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) THEN
        EXECUTE format('ALTER DATABASE %I SET pgrole.home = %L', current_database(), 'on');
    END IF;
END
$$;
