-- Which file does the server write its jsonlog to, and how many bytes does it have? NULLs if it writes none. The size of a FIFO
-- is 0: it must not be read.
-- `own_login`: the login of this session. `zone`: seconds of the log's time zone east of UTC.
SELECT
    textsend(f.name) AS name, s.size, textsend(session_user::text) AS own_login,
    extract(epoch FROM timezone(current_setting('log_timezone'), now()) - timezone('UTC', now()))::bigint AS zone
FROM (SELECT pg_current_logfile('jsonlog') AS name) AS f
LEFT JOIN LATERAL pg_stat_file(f.name, true) AS s ON f.name IS NOT NULL AND NOT s.isdir
