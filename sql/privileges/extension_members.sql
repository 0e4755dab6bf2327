-- Which objects belong to extensions? One row for each 10,000 of them. `members`: of each, the oids of its catalog and its own, in 4
-- bytes each. `page_key`, `page_size`: postgres/answer_pages.py.
SELECT string_agg(m.member, ''::bytea) AS members, m.part AS page_key, 200 + 8 * count(*) AS page_size
FROM (
    SELECT
        oidsend(d.classid) || oidsend(d.objid) AS member,
        row_number() OVER (ORDER BY d.classid, d.objid) / 10000 AS part
    FROM pg_catalog.pg_extension AS e
    JOIN pg_catalog.pg_depend AS d
        ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.refobjsubid = 0 AND d.deptype = 'e'
    WHERE d.classid IN (
        'pg_class'::regclass, 'pg_proc'::regclass, 'pg_namespace'::regclass, 'pg_type'::regclass, 'pg_language'::regclass,
        'pg_foreign_data_wrapper'::regclass, 'pg_foreign_server'::regclass
    )
) AS m
GROUP BY m.part
