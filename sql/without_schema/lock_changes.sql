-- Takes the lock under which controllers change roles: concurrent ALTER ROLE on one row fails with "tuple concurrently
-- updated". Any role that can connect can take and hold this lock, so the controller waits for it only briefly.
DO $lock_changes$
DECLARE
    before CONSTANT text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtextextended('pgrole-controller: turn to change', 0));
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    PERFORM set_config('lock_timeout', before, true);
END
$lock_changes$
