"""A controller without superuser does what CREATEROLE and some grants allow, and reports what it needs for the rest."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.approval import APPROVE
from pgrole_controller.core.contest import FIRST_DELAY, LIMIT
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, documented_sql, follow, remedies, role_sql
from tests.acceptance.world import (
    Controller,
    Database,
    Json,
    Kube,
    Stage,
    condition,
    make_kube,
    open_database,
    remove,
    running,
    says,
)
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: Attributes that policy allows here, whether or not the controller's role can give them.
ALLOW = ("--allow", "createrole,replication,bypassrls")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(servers: Servers) -> AsyncIterator[PostgresServer]:
    """A server with the controller's role as documented."""
    async with servers.run() as server, open_database(server.dsn()) as admin:
        await admin.execute(role_sql(servers.version))
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kube(api_server: ApiServer) -> AsyncIterator[Kube]:
    """The namespace of the steward, empty at the beginning of each test."""
    made = await make_kube(api_server)
    yield made
    await remove(made)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def steward(
    kube: Kube, home: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Controller]:
    """A controller under that role."""
    folder = tmp_path_factory.mktemp("steward")
    dsn = home.dsn(CONTROLLER_ROLE, password=PASSWORD)
    made = Controller(kube.server, dsn, folder, "--namespace", kube.namespace, *ALLOW)
    async with running(made) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def database(home: PostgresServer, kube: Kube, steward: Controller) -> AsyncIterator[Database]:
    """A superuser's session. Afterwards, the controller's own session must not have ended."""
    async with open_database(home.dsn()) as opened:
        yield opened
    await kube.delete_all()
    await kube.wait_number(0)
    assert "session with PostgreSQL ended" not in steward.log


@pytest.fixture
def role() -> str:
    return f"n{secrets.token_hex(4)}"


def drifts(count: int) -> Any:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def declare(kube: Kube, role: str, **spec: Any) -> Json:
    await kube.apply("app", name=role, **spec)
    return await kube.wait_ready("app")


async def test_a_controller_with_createrole_creates_changes_and_drops_a_role(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply(
        "app",
        name=role,
        login=True,
        createdb=True,
        createrole=True,
        inherit=False,
        connectionLimit=5,
        validUntil="2031-05-06T07:08:09Z",
        comment="of the steward",
        parameters={"work_mem": "2MB", "search_path": "app, public"},
        databaseParameters=[{"database": "template1", "parameters": {"work_mem": "4MB"}}],
        deletionPolicy="Drop",
    )
    obj = await kube.wait_ready("app")
    row = await database.role(role)
    assert row is not None
    assert (row["rolcanlogin"], row["rolcreatedb"], row["rolcreaterole"]) == (True, True, True)
    assert (row["rolinherit"], row["rolconnlimit"], row["comment"]) == (False, 5, "of the steward")
    assert obj["status"]["driftCount"] == 0
    await kube.apply("app", name=role, deletionPolicy="Drop")
    await kube.wait_ready("app")
    row = await database.role(role)
    assert row is not None
    assert (row["rolcanlogin"], row["rolcreatedb"], row["rolcreaterole"]) == (False, False, False)
    assert (row["comment"], row["rolconfig"]) == (None, None)
    await kube.delete("app")
    await kube.wait_gone("app")
    assert await database.role(role) is None


async def test_oid_and_xmin_of_pg_authid_are_enough_for_watch(steward: Controller, database: Database) -> None:
    assert "detection=Watch" in steward.log
    granted = await database.connection.fetch(
        "SELECT column_name::text AS name FROM information_schema.column_privileges"
        " WHERE grantee = $1 AND table_name = 'pg_authid'",
        CONTROLLER_ROLE,
    )
    assert {row["name"] for row in granted} <= {"oid", "xmin"}
    assert not await database.fetchval(
        "SELECT has_column_privilege($1, 'pg_authid', 'rolpassword', 'SELECT')", CONTROLLER_ROLE
    )


async def test_a_password_follows_its_secret_although_it_cannot_be_read_back(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="first")
    await declare(kube, role, login=True, password={"secretRef": {"name": "source"}})
    await database.wait_password(role, "first")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0


async def test_a_role_that_someone_created_again_gets_its_password_although_it_cannot_be_read(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("app-password", password="first")
    await kube.apply("app", name=role, login=True, password={"secretRef": {"name": "app-password"}})
    await kube.wait_ready("app")
    await database.wait_password(role, "first")
    await database.execute(f"""
        BEGIN; DROP ROLE "{role}"; CREATE ROLE "{role}" LOGIN PASSWORD 'guessed';
        GRANT "{role}" TO "{CONTROLLER_ROLE}" WITH ADMIN OPTION; COMMIT
    """)
    await database.wait_password(role, "first")
    await kube.wait_ready("app")


async def test_a_role_that_someone_created_again_gets_its_password_once_that_is_approved(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("app-password", password="first")
    spec = {"name": role, "login": True, "password": {"secretRef": {"name": "app-password"}}}
    await kube.apply("app", **spec, drift={"policy": "Report"})
    await kube.wait_ready("app")
    await database.execute(f"""
        BEGIN; DROP ROLE "{role}"; CREATE ROLE "{role}" LOGIN PASSWORD 'guessed';
        GRANT "{role}" TO "{CONTROLLER_ROLE}" WITH ADMIN OPTION; COMMIT
    """)
    obj = await kube.wait_for("app", lambda obj: "digest" in obj["status"].get("approval", {}), "an offer")
    assert obj["status"]["lastDrift"]["fields"] == ["role"]
    await database.wait_password(role, "guessed")
    await kube.patch("app", {"metadata": {"annotations": {APPROVE: f"{obj['status']['approval']['digest']}/x"}}})
    await database.wait_password(role, "first")
    await kube.wait_ready("app")


async def test_objects_join_each_others_roles(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("group", name=f"{role}_group", deletionPolicy="Drop")
    await declare(kube, role, memberOf=[{"role": f"{role}_group", "admin": True}])
    await kube.apply("group", name=f"{role}_group", deletionPolicy="Drop", comment="changed")
    await kube.wait_ready("group")
    await declare(kube, role)
    assert await held(database, role) == {}
    await kube.delete("group")
    await kube.wait_gone("group")


async def held(database: Database, role: str) -> dict[str, bool]:
    """Returns the memberships of a role, each with whether it has ADMIN."""
    rows = await database.connection.fetch(
        "SELECT roleid::regrole::text AS name, bool_or(admin_option) AS admin FROM pg_auth_members"
        " WHERE member = to_regrole($1) GROUP BY 1",
        role,
    )
    return {row["name"]: row["admin"] for row in rows}


async def test_a_revoked_membership_is_granted_again(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("group", name=f"{role}_group")
    await declare(kube, role, memberOf=[{"role": f"{role}_group"}])
    by = "" if await version(database) < 16 else f" GRANTED BY {CONTROLLER_ROLE}"
    await database.execute(f"REVOKE {role}_group FROM {role}{by}")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
    assert await held(database, role) == {f"{role}_group": False}


async def version(database: Database) -> int:
    return int(await database.fetchval("SELECT current_setting('server_version_num')::int / 10000"))


async def blocked(kube: Kube, *words: str, name: str = "app") -> Json:
    """Returns the object once it reports a missing privilege with these words."""
    return await kube.wait_for(
        name, lambda obj: says(obj, "DatabaseError", "lacks a privilege", *words), f"lacks a privilege, {words}"
    )


class TestRolesMadeByOthers:
    @pytest.mark.since(16, "CREATEROLE reaches only roles with ADMIN")
    async def test_adoption_reports_that_it_needs_admin(self, kube: Kube, database: Database, role: str) -> None:
        await database.execute(f"CREATE ROLE {role}")
        await kube.apply("app", name=role, login=True, adopt=True, deletionPolicy="Drop")
        obj = await blocked(kube, "login")
        assert condition(obj, "Stalled")["status"] == "True"
        grant = f'GRANT "{role}" TO "{CONTROLLER_ROLE}" WITH ADMIN TRUE, INHERIT FALSE, SET FALSE'
        assert await follow(database, obj) == [grant]
        await kube.wait_ready("app")
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None

    @pytest.mark.before(16, "CREATEROLE reaches every role but superusers")
    async def test_before_16_roles_of_others_are_adopted_without_admin(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await database.execute(f"CREATE ROLE {role}; CREATE ROLE {role}_group; GRANT {role}_group TO {role}")
        await declare(kube, role, login=True, adopt=True)
        row = await database.role(role)
        assert row is not None
        assert row["rolcanlogin"]
        assert await held(database, role) == {}

    @pytest.mark.since(16, "CREATEROLE reaches only roles with ADMIN")
    async def test_a_role_that_replaced_ours_is_reported_until_admin_is_granted(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, login=True)
        await database.execute(f"BEGIN; DROP ROLE {role}; CREATE ROLE {role}; COMMIT")
        await follow(database, await blocked(kube, "login"))
        await kube.wait_ready("app")

    @pytest.mark.since(16, "CREATEROLE reaches only roles with ADMIN")
    async def test_after_an_upgrade_the_documented_grants_let_the_controller_repair_its_roles(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role)
        await database.execute(f"REVOKE {role} FROM {CONTROLLER_ROLE}; ALTER ROLE {role} CREATEDB")
        await blocked(kube, "createdb")
        query = documented_sql("After an upgrade from PostgreSQL 14 or 15").replace("\\gexec", "")
        for (statement,) in await database.connection.fetch(query):
            await database.execute(statement)
        await kube.wait_ready("app")
        row = await database.role(role)
        assert row is not None
        assert not row["rolcreatedb"]

    @pytest.mark.since(16, "CREATEROLE reaches only roles with ADMIN")
    async def test_a_role_that_cannot_be_dropped_names_retain_and_the_grant(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, deletionPolicy="Drop")
        await database.execute(f"REVOKE {role} FROM {CONTROLLER_ROLE}")
        await kube.delete("app")
        obj = await kube.wait_reason("app", "DropBlocked")
        assert "Retain" in condition(obj, "Ready")["message"]
        await follow(database, obj)
        await kube.wait_gone("app")
        assert await database.role(role) is None

    @pytest.mark.since(16, "CREATEROLE reaches only roles with ADMIN")
    async def test_a_role_whose_login_cannot_be_taken_to_empty_it_blocks_the_drop(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("heir", name=f"{role}_heir")
        await kube.wait_ready("heir")
        await declare(kube, role, login=True, deletionPolicy="Drop", reassignOwnedTo=f"{role}_heir")
        await database.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}; REVOKE {role} FROM {CONTROLLER_ROLE}")
        await kube.delete("app")
        obj = await kube.wait_reason("app", "DropBlocked")
        assert "(login)" in condition(obj, "Ready")["message"]
        assert "Retain" in condition(obj, "Ready")["message"]
        await database.execute(f"DROP SCHEMA {role}")
        await follow(database, obj)
        await kube.wait_gone("app")
        assert await database.role(role) is None

    @pytest.mark.since(16, "joining needs ADMIN")
    @pytest.mark.parametrize("own", [True, False], ids=["a role", "one of PostgreSQL's own"])
    async def test_joining_a_role_of_others_needs_admin_on_it(
        self, kube: Kube, database: Database, role: str, own: bool
    ) -> None:
        group = f"{role}_group" if own else "pg_monitor"
        if own:
            await database.execute(f"CREATE ROLE {group}")
        await kube.apply("app", name=role, memberOf=[{"role": group}])
        obj = await blocked(kube, "memberOf")
        assert await follow(database, obj) == [
            f'GRANT "{group}" TO "{CONTROLLER_ROLE}" WITH ADMIN TRUE, INHERIT FALSE, SET FALSE'
        ]
        await kube.wait_ready("app")
        assert await held(database, role) == {group: False}
        await database.execute(f"REVOKE {group} FROM {CONTROLLER_ROLE} CASCADE")

    @pytest.mark.before(16, "CREATEROLE joins every role but superusers")
    async def test_before_16_any_role_is_joined_without_admin(self, kube: Kube, database: Database, role: str) -> None:
        await database.execute(f"CREATE ROLE {role}_group")
        await declare(kube, role, memberOf=[{"role": f"{role}_group", "admin": True}, {"role": "pg_monitor"}])
        assert await held(database, role) == {f"{role}_group": True, "pg_monitor": False}
        await database.execute(f"GRANT pg_signal_backend TO {role}; REVOKE ADMIN OPTION FOR {role}_group FROM {role}")
        await kube.wait_for("app", drifts(1), "driftCount 1")
        await database.wait_value(f"SELECT count(*) FROM pg_auth_members WHERE member = '{role}'::regrole", 2)
        await database.wait_value(
            f"SELECT bool_or(admin_option) FROM pg_auth_members WHERE member = '{role}'::regrole", True
        )


@pytest.mark.since(16, "a grant is revoked as its grantor")
class TestGrantsOfOthers:
    async def test_a_superusers_grant_is_reported_with_its_revoke_while_the_rest_is_repaired(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("group", name=f"{role}_group")
        await kube.wait_ready("group")
        await declare(kube, role)
        await database.execute(f"GRANT {role}_group TO {role}; ALTER ROLE {role} CREATEDB")
        obj = await blocked(kube, "memberOf")
        assert remedies(obj) == [f'REVOKE "{role}_group" FROM "{role}" GRANTED BY "postgres"']
        await database.wait_role(role, lambda row: not row["rolcreatedb"], "NOCREATEDB")
        await follow(database, obj)
        await kube.wait_ready("app")
        assert await held(database, role) == {}

    async def test_repairs_beside_a_missing_privilege_are_announced_and_held_back_in_a_contest(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("group", name=f"{role}_group")
        await kube.wait_ready("group")
        await declare(kube, role)
        await database.execute(f"GRANT {role}_group TO {role}")
        await blocked(kube, "memberOf")
        for _ in range(LIMIT):
            await database.execute(f"ALTER ROLE {role} CREATEDB")
            await database.wait_role(role, lambda row: not row["rolcreatedb"], "NOCREATEDB")
        await kube.wait_event("DriftCorrected", about="app")
        began = anyio.current_time()
        await database.execute(f"ALTER ROLE {role} CREATEDB")
        await database.wait_role(role, lambda row: not row["rolcreatedb"], "NOCREATEDB")
        assert anyio.current_time() - began >= FIRST_DELAY - 0.1
        await database.execute(f'REVOKE "{role}_group" FROM "{role}" GRANTED BY "postgres"')
        obj = await kube.wait_for("app", drifts(LIMIT + 1), f"driftCount {LIMIT + 1}")
        assert obj["status"]["lastDrift"]["corrected"]

    async def test_revoking_another_roles_grant_requires_its_privileges(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        for name in ("group", "keeper"):
            await kube.apply(name, name=f"{role}_{name}")
            await kube.wait_ready(name)
        await declare(kube, role)
        keeper = f"{role}_keeper"
        await database.execute(f"CREATE ROLE {role}_x")
        await kube.apply("keeper", name=keeper, memberOf=[{"role": f"{role}_group", "admin": True}])
        await kube.wait_ready("keeper")
        await database.execute(f"GRANT {role}_group TO {role} GRANTED BY {keeper}")
        obj = await blocked(kube, "memberOf")
        assert remedies(obj) == [f'GRANT "{keeper}" TO "{CONTROLLER_ROLE}" WITH INHERIT TRUE, SET FALSE']
        await follow(database, obj)
        await kube.wait_ready("app")
        assert await held(database, role) == {}


class TestAttributes:
    @pytest.mark.since(16, "CREATEROLE can give attributes that the role has itself")
    @pytest.mark.parametrize("attribute", ["replication", "bypassrls"])
    async def test_an_attribute_the_controller_lacks_is_reported_with_its_grant(
        self, kube: Kube, database: Database, role: str, attribute: str
    ) -> None:
        await kube.apply("app", name=role, **{attribute: True})
        obj = await blocked(kube)
        assert await follow(database, obj) == [f'ALTER ROLE "{CONTROLLER_ROLE}" {attribute.upper()}']
        await kube.wait_ready("app")
        await database.execute(f"ALTER ROLE {CONTROLLER_ROLE} NO{attribute}")

    @pytest.mark.before(16, "only superusers give it")
    @pytest.mark.parametrize("attribute", ["replication", "bypassrls"])
    async def test_before_16_attributes_only_superusers_can_give_are_reported(
        self, kube: Kube, database: Database, role: str, attribute: str
    ) -> None:
        await kube.apply("app", name=role, **{attribute: True})
        obj = await kube.wait_reason("app", "DatabaseError")
        assert remedies(obj) == [f'CREATE ROLE "{role}" {attribute.upper()}']
        assert await database.role(role) is None

    @pytest.mark.parametrize("attribute", ["replication", "bypassrls"])
    async def test_an_attribute_given_by_someone_else_is_reported_while_the_rest_is_repaired(
        self, kube: Kube, database: Database, role: str, attribute: str
    ) -> None:
        await declare(kube, role)
        await database.execute(f"ALTER ROLE {role} {attribute} LOGIN")
        obj = await blocked(kube, attribute)
        if attribute == "bypassrls" or await version(database) >= 16:
            await database.wait_role(role, lambda row: not row["rolcanlogin"], "NOLOGIN")
        await follow(database, obj)
        await kube.wait_ready("app")
        await database.execute(f"ALTER ROLE {CONTROLLER_ROLE} NO{attribute}")
        row = await database.role(role)
        assert row is not None
        assert not row[f"rol{attribute}"]
        assert not row["rolcanlogin"]

    @pytest.mark.before(16, "only superusers alter attributes of a role that has it")
    async def test_before_16_replication_of_a_role_holds_back_its_attributes_only(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("app", name=role, deletionPolicy="Drop", drift={"ignore": ["replication"]})
        await kube.wait_ready("app")
        await database.execute(f"ALTER ROLE {role} REPLICATION CONNECTION LIMIT 5; COMMENT ON ROLE {role} IS 'other'")
        obj = await blocked(kube, "(connectionLimit)")
        assert remedies(obj) == [f'ALTER ROLE "{role}" CONNECTION LIMIT -1']
        await database.wait_role(role, lambda row: row["comment"] is None, "no comment")
        await follow(database, obj)
        await kube.wait_ready("app")
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None

    async def test_a_role_made_superuser_is_repaired_only_after_a_superuser_reverts_that(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role)
        await database.execute(f"ALTER ROLE {role} SUPERUSER CREATEDB")
        obj = await blocked(kube, "superuser, createdb")
        assert await follow(database, obj) == [f'ALTER ROLE "{role}" NOSUPERUSER']
        await kube.wait_ready("app")
        row = await database.role(role)
        assert row is not None
        assert not row["rolcreatedb"]


class TestParameterGrants:
    async def test_a_parameter_that_only_superusers_see_needs_the_policy(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("app", name=role, parameters={"session_preload_libraries": "auto_explain"})
        obj = await kube.wait_reason("app", "NotAllowed")
        assert 'spec.parameters: "session_preload_libraries" is for superusers' in condition(obj, "Ready")["message"]
        assert await database.role(role) is None

    @pytest.mark.since(15, "GRANT SET ON PARAMETER")
    async def test_a_custom_parameter_needs_a_grant(self, kube: Kube, database: Database, role: str) -> None:
        await kube.apply("app", name=role, parameters={f"{role}.tenant": "1"})
        obj = await blocked(kube, "parameters")
        assert await follow(database, obj) == [f'GRANT SET ON PARAMETER "{role}"."tenant" TO "{CONTROLLER_ROLE}"']
        await kube.wait_ready("app")
        row = await database.role(role)
        assert row is not None
        assert row["rolconfig"] == [f"{role}.tenant=1"]

    @pytest.mark.before(15, "custom parameters are for superusers")
    async def test_before_15_a_custom_parameter_needs_a_superuser(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await kube.apply("app", name=role, parameters={f"{role}.tenant": "1"})
        obj = await blocked(kube, "parameters")
        assert await database.role(role) is None
        assert remedies(obj) == [f'ALTER ROLE "{role}" SET "{role}"."tenant" = …']

    async def test_a_superuser_parameter_set_by_someone_else_is_reported_while_the_rest_is_repaired(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role)
        await database.execute(
            f"ALTER ROLE {role} SET session_replication_role = 'replica'; ALTER ROLE {role} SET work_mem = '1MB'"
        )
        obj = await blocked(kube, "parameters")
        await database.wait_value(
            f"SELECT rolconfig::text FROM pg_roles WHERE rolname = '{role}'", "{session_replication_role=replica}"
        )
        await follow(database, obj)
        obj = await kube.wait_ready("app")
        row = await database.role(role)
        assert row is not None
        assert row["rolconfig"] is None

    async def test_a_parameter_that_reset_all_keeps_is_reported_while_the_rest_is_repaired(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, parameters={"work_mem": "2MB"})
        custom = f'"{role.capitalize()}.tenant"'
        await database.execute(
            f"ALTER ROLE {role} SET {custom} = '7'; ALTER ROLE {role} IN DATABASE postgres SET {custom} = '8';"
            f"ALTER ROLE {role} CREATEDB"
        )
        obj = await blocked(kube, "parameters, databaseParameters")
        assert remedies(obj) == [f'ALTER ROLE "{role}"{where} RESET ALL' for where in ("", ' IN DATABASE "postgres"')]
        await database.wait_role(role, lambda row: not row["rolcreatedb"], "NOCREATEDB")
        await follow(database, obj)
        obj = await kube.wait_ready("app")
        assert obj["status"]["driftCount"] <= 2, "the second repairs the parameters"
        await database.wait_value(f"SELECT rolconfig::text FROM pg_roles WHERE rolname = '{role}'", "{work_mem=2MB}")


async def test_a_forbidden_change_is_retried_rarely_and_delays_no_other_object(
    kube: Kube, home: PostgresServer, database: Database, role: str
) -> None:
    await kube.apply_all({f"app-{number}": {"name": f"{role}_{number}"} for number in range(20)})
    await kube.wait_all_ready()
    await database.execute(f"ALTER ROLE {role}_0 SUPERUSER; ALTER ROLE {role}_1 LOGIN")
    await blocked(kube, "superuser", name="app-0")
    await kube.wait_for("app-1", drifts(1), "driftCount 1")
    for number in range(2, 12):
        await database.execute(f"ALTER ROLE {role}_{number} LOGIN")
        await kube.wait_for(f"app-{number}", drifts(1), "driftCount 1")
    refused = home.log.read_text(encoding="utf-8").count(f'ALTER ROLE "{role}_0"')
    assert 1 <= refused <= 8
    await database.execute(f"ALTER ROLE {role}_0 NOSUPERUSER")
    await kube.wait_ready("app-0")


@pytest_asyncio.fixture(loop_scope="session")
async def admin(stage: Stage) -> AsyncIterator[Database]:
    async with stage.database() as opened:
        await opened.execute(f"CREATE ROLE {CONTROLLER_ROLE} LOGIN PASSWORD '{PASSWORD}'")
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def attempt(stage: Stage, admin: Database) -> AsyncIterator[Controller]:
    """A controller in mode Watch whose role can log in, and nothing else."""
    made = stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD), "--detection", "watch")
    await made.start()
    yield made
    assert await made.stop() == 0
    assert "Traceback" not in made.log


async def not_ready(kube: Kube, words: str) -> Json:
    """Returns the object once it reports ServerNotReady with these words."""
    return await kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", words), f"ServerNotReady, {words}")


class TestAccess:
    """Privileges required for a session at all: each test has its own server and controller."""

    @pytest.mark.usefixtures("attempt")
    async def test_every_missing_privilege_is_reported_with_a_sufficient_grant(
        self, stage: Stage, admin: Database
    ) -> None:
        await admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        await stage.kube.apply("app", login=True)
        system = f'GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO "{CONTROLLER_ROLE}"'
        create = f'GRANT CREATE ON DATABASE "postgres" TO "{CONTROLLER_ROLE}"'
        read = f'GRANT SELECT (oid, xmin) ON pg_catalog.pg_authid TO "{CONTROLLER_ROLE}"'
        assert remedies(await not_ready(stage.kube, system)) == [system, create, read]
        await admin.execute(system)
        alone = f"GRANT CREATE ON DATABASE postgres TO {CONTROLLER_ROLE}"
        assert await follow(admin, await not_ready(stage.kube, alone)) == [alone]
        assert await follow(admin, await not_ready(stage.kube, "table pg_authid")) == [read]
        assert await follow(admin, await blocked(stage.kube)) == [f'ALTER ROLE "{CONTROLLER_ROLE}" CREATEROLE']
        await stage.kube.wait_ready("app")
        await admin.execute("ALTER ROLE app NOLOGIN")
        await stage.kube.wait_for("app", drifts(1), "driftCount 1")

    @pytest.mark.usefixtures("attempt")
    async def test_a_schema_installed_by_a_superuser_needs_three_grants_and_not_pg_authid(
        self, stage: Stage, admin: Database
    ) -> None:
        await admin.execute(f"BEGIN; {queries.install()}; COMMIT; ALTER ROLE {CONTROLLER_ROLE} CREATEROLE")
        await stage.kube.apply("app", login=True)
        asked = await follow(admin, await not_ready(stage.kube, "USAGE"))
        documented = documented_sql("Where a superuser installed schema pgrole")
        assert [f"{statement};" for statement in asked] == documented.replace(
            CONTROLLER_ROLE, f'"{CONTROLLER_ROLE}"'
        ).splitlines()
        await stage.kube.wait_ready("app")
        await admin.execute("ALTER ROLE app NOLOGIN; DROP ROLE app")
        await stage.kube.wait_for("app", drifts(1), "driftCount 1")
        await admin.execute("ALTER ROLE app RENAME TO away")
        await stage.kube.wait_for("app", drifts(2), "driftCount 2")

    @pytest.mark.since(16, "createrole_self_grant")
    async def test_with_createrole_self_grant_it_revokes_grants_and_reassigns_objects_of_its_roles(
        self, stage: Stage, admin: Database
    ) -> None:
        await admin.execute(f"DROP ROLE {CONTROLLER_ROLE}; {role_sql(await version(admin))}")
        await admin.execute(documented_sql("Acting for the roles that it made"))
        async with running(stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD))):
            for name in ("group", "keeper"):
                await stage.kube.apply(name, memberOf=[{"role": "group", "admin": True}] if name == "keeper" else [])
            await stage.kube.apply("app", deletionPolicy="Drop", reassignOwnedTo="keeper")
            await stage.kube.wait_all_ready()
            assert await held(admin, CONTROLLER_ROLE) == {"app": True, '"group"': True, "keeper": True}
            await admin.execute('GRANT "group" TO app GRANTED BY keeper')
            obj = await stage.kube.wait_for("app", drifts(1), "driftCount 1")
            assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
            assert await held(admin, "app") == {}
            await admin.execute("CREATE SCHEMA of_app AUTHORIZATION app")
            await stage.kube.delete("app")
            await stage.kube.wait_gone("app")
            await admin.wait_value(
                "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'of_app'", "keeper"
            )

    @pytest.mark.since(16, "the creator of a role gets ADMIN on it")
    async def test_admin_on_a_role_that_a_declared_role_created_is_no_drift(
        self, stage: Stage, admin: Database
    ) -> None:
        await admin.execute(f"DROP ROLE {CONTROLLER_ROLE}; {role_sql(await version(admin))}")
        async with running(
            stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD), "--allow", "createrole")
        ) as controller:
            await stage.kube.apply("app", createrole=True, login=True)
            await stage.kube.wait_ready("app")
            await admin.execute("SET ROLE app; CREATE ROLE made_by_app; RESET ROLE")
            await stage.kube.apply("app", createrole=True, login=True, comment="looked at")
            await admin.wait_role("app", lambda row: row["comment"] == "looked at", "comment")
            obj = await stage.kube.wait_ready("app")
            assert obj["status"]["driftCount"] == 0
            assert "session with PostgreSQL ended" not in controller.log
