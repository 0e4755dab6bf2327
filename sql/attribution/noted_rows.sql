-- What was noted since the last call (sql/attribution/note_rows.sql)?
SELECT textsend(n.drifted) AS drifted, set_config('pgrole.drifted', '', false) AS forgotten
FROM (SELECT coalesce(current_setting('pgrole.drifted', true), '') AS drifted OFFSET 0) AS n
