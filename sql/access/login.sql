-- Which role is connected to which database, and does the server keep commit timestamps? One row.
SELECT
    textsend(current_database()::text) AS database, textsend(session_user::text) AS login,
    current_setting('track_commit_timestamp') = 'on' AS tracked
