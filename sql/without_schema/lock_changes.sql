-- Concurrent ALTER ROLE on one row fails with "tuple concurrently updated", so changes are made under this lock.
-- Any role that can connect may take the lock, and hold it for as long as it likes: so it is waited for a moment only.
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
