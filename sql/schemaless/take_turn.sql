-- Concurrent ALTER ROLE on one row fails with "tuple concurrently updated": those who ask for this first take turns.
-- Any role that can connect may take the lock, and hold it for as long as it likes: so it is waited for a moment only.
DO $turn$
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
$turn$
