-- What was noted last (sql/attribution/note_rows.sql).
SELECT textsend(current_setting('pgrole.drifted', true)) AS drifted
