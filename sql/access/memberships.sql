-- Who is a member of which role, and what does that let it do? One row for each membership, whoever granted it.
-- Before PostgreSQL 16, INHERIT is the member's attribute, and every member may SET ROLE.
-- `page_key`, `page_size`: postgres/answer_pages.py.
SELECT
    m.member, m.roleid AS group_role, bool_or(m.admin_option) AS admin,
    bool_or(coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, r.rolinherit)) AS inherit,
    bool_or(coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)) AS set_role,
    row_number() OVER (ORDER BY m.member, m.roleid) AS page_key, 300 AS page_size
FROM pg_catalog.pg_auth_members AS m
JOIN pg_catalog.pg_roles AS r ON r.oid = m.member
GROUP BY m.member, m.roleid
