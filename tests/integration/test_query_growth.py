"""Reconciling one role reads no more pages with many roles, claims, memberships and settings.

Plans are generic, as in the controller's sessions, but without their other settings, which prefer indexes.
Statistics may be older than the roles.
"""

import asyncpg
import pytest

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from tests.integration.sql_support import count_pages_of

_MANY = 4000
_FEW_PAGES = 60

_CREATE = f"""
DO $$ BEGIN FOR n IN 1..{_MANY} LOOP
    EXECUTE format('CREATE ROLE many_%s', n);
    EXECUTE format('ALTER ROLE many_%s SET work_mem = ''2MB''', n);
    EXECUTE format('GRANT app_group TO many_%s', n);
    EXECUTE format('COMMENT ON ROLE many_%s IS ''one of many''', n);
END LOOP; END $$;
INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid)
SELECT r.rolname, r.oid, s.system_identifier, 'c1', 'shop', 'n1', r.rolname, 'u' || r.oid
FROM pg_roles AS r, pg_control_system() AS s
WHERE r.rolname LIKE 'many%'
"""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_reading_one_role_takes_no_more_pages_with_many_roles(
    own_postgres: PostgresServer, *, analyzed: bool
) -> None:
    roles = queries.inspect_from("roles", claims="claims_in_database", verifiers="verifiers_by_schema")
    connection = await asyncpg.connect(own_postgres.dsn())
    try:
        await connection.execute(queries.install())
        await connection.execute(
            "CREATE ROLE app_group; CREATE ROLE app LOGIN; GRANT app_group TO app; ALTER ROLE app SET work_mem = '3MB'"
        )
        system = await connection.fetchval("SELECT system_identifier FROM pg_control_system()")
        oid = await connection.fetchval("SELECT 'app'::regrole::oid")

        async def count_pages() -> dict[str, int]:
            role = f"('{{app}}', '{{shop}}', '{{app}}', 'c1', {system})"
            references = "('{app_group}', '{work_mem}', '{postgres}', '{}')"
            expect = f"('app', 'app', {oid}, NULL)"
            query = "SELECT pgrole.expect($1::text, $2::text, $3::oid, $4::text)"
            return {
                "roles": await count_pages_of(connection, roles, role),
                "references": await count_pages_of(connection, queries.inspect("references"), references),
                "expect": await count_pages_of(connection, query, expect),
            }

        before = await count_pages()
        await connection.execute(_CREATE)
        if analyzed:
            await connection.execute("ANALYZE")
        after = await count_pages()
    finally:
        await connection.close()
    assert {name: pages for name, pages in after.items() if pages > before[name] + _FEW_PAGES} == {}
