-- Would a change in this session fire an event trigger of a role that is not trusted? Then this fails with PGR06. Trusted:
-- superusers, and the role that logged in. As sql/inspect/database_installation.sql.
DO $triggers$
DECLARE
    foreign_one name := (
        SELECT t.evtname
        FROM pg_catalog.pg_event_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.evtfoid
        WHERE t.evtenabled <> 'D' AND (
            SELECT count(*) FROM pg_catalog.pg_roles AS r
            WHERE r.oid IN (t.evtowner, p.proowner) AND NOT (r.rolsuper OR r.rolname = session_user)
        ) > 0
        LIMIT 1
    );
BEGIN
    IF foreign_one IS NOT NULL THEN
        RAISE EXCEPTION 'event trigger "%" of a role that is not trusted would run', encode(textsend(foreign_one::text), 'escape')
            USING ERRCODE = 'PGR06';
    END IF;
END
$triggers$
