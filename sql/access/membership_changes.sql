-- When were memberships last written? Only those whose time the server keeps (track_commit_timestamp).
-- `page_key`, `page_size`: postgres/answer_pages.py.
SELECT
    m.member, m.roleid AS group_role, max(t.at) AS changed_at,
    row_number() OVER (ORDER BY m.member, m.roleid) AS page_key, 250 AS page_size
FROM pg_catalog.pg_auth_members AS m
CROSS JOIN LATERAL (SELECT pg_catalog.pg_xact_commit_timestamp(m.xmin) AS at) AS t
GROUP BY m.member, m.roleid
HAVING bool_and(t.at IS NOT NULL)
