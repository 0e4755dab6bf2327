-- Was DROP DATABASE of this database interrupted? One row. PostgreSQL then lets no one connect to it, or alter it.
-- $1 name the database
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_database AS d WHERE d.datname = $1::name AND d.datconnlimit = -2
) AS invalid
