-- Who asks, where, and does the server keep the times of commits? One row.
SELECT
    textsend(current_database()::text) AS database, textsend(session_user::text) AS login,
    current_setting('track_commit_timestamp') = 'on' AS tracked
