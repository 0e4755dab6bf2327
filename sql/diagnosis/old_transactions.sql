-- What has kept vacuum from removing dead rows for an hour or more? The oldest five.
-- Names are sent as bytes: another database may have written them in its encoding.
SELECT o.what, o.seconds
FROM (
    SELECT
        textsend(format('session %s of %s in database %s', a.pid, a.usename, a.datname)) AS what,
        extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.xact_start < clock_timestamp() - interval '1 hour' AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
      AND a.usename IS NOT NULL
    UNION ALL
    SELECT
        textsend(format('prepared transaction %s of %s in database %s', p.gid, p.owner, p.database)),
        extract(epoch FROM clock_timestamp() - p.prepared)::bigint
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.prepared < clock_timestamp() - interval '1 hour'
) AS o
ORDER BY o.seconds DESC
LIMIT 5
