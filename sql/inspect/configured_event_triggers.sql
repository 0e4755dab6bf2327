-- Are event triggers off in the configuration of the server? One row. Only superusers may ask.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_file_settings AS f
    WHERE f.name = 'event_triggers' AND f.applied
      AND pg_catalog.lower(f.setting) IN ('off', 'of', 'false', 'fals', 'fal', 'fa', 'f', 'no', 'n', '0')
) AS configured_off
