-- Has a superuser set pgrole.suspend on the home database or on the controller's role? Then this fails with PGR05.
-- The relation suspended is sql/inspect/suspended.sql.
DO $suspended$
BEGIN
    IF (SELECT s.suspended FROM suspended AS s) THEN
        RAISE EXCEPTION 'pgrole.suspend is on for database "%", or for the controller''s role', current_database() USING ERRCODE = 'PGR05';
    END IF;
END
$suspended$
