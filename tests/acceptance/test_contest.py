"""Something else reverts every repair: the controller repairs with growing delays, and reports that."""

import math
import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.core.contest import FIRST_DELAY, LIMIT, WINDOW
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.servers import pgservers
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Json,
    Kube,
    Stage,
    condition,
    is_ready,
    make_kube,
    open_database,
    remove,
    running,
    says,
)
from tests.servers import Servers

pytestmark = pytest.mark.slow

FIGHTER = "fighter's tool"
NAMED = 'Last seen running a statement about this role: user "postgres"'
HELD = "the controller corrects it again if it differs"

#: Seconds between looks of the other side: it answers each repair far sooner than the next slow one.
ANSWERED_EVERY = 0.05


@pytest.fixture
def role() -> str:
    return f"role_{secrets.token_hex(4)}"


@dataclass
class Fight:
    """How often the controller repaired the role, and the other side changed it again."""

    began: float
    answered: int = 0

    def is_slow(self, more: int = 0) -> bool:
        """Whether the other side changed it no more often than allowed: once at first, then `LIMIT` times, and once for
        each slow repair.

        Slow repairs follow after 2, 6, 14, 30 s …: as many as the elapsed time allows.
        """
        answered, lasted = self.answered, anyio.current_time() - self.began
        return answered <= 1 + LIMIT + int(math.log2(lasted / FIRST_DELAY + 1)) + more


def contested(field: str, times: int, *words: str) -> Callable[[Json], bool]:
    """Returns a check that this field was repaired at least this often, and is held back now."""

    def is_said(obj: Json) -> bool:
        found = re.search(rf"{field}: corrected (\d+) times", condition(obj, "Ready").get("message", ""))
        return says(obj, "Contested", HELD, *words) and found is not None and int(found[1]) >= times

    return is_said


def assert_not_held_back(obj: Json) -> None:
    """Asserts that what the test just observed came before the next slow repair of the contested field."""
    found = re.search(rf"from (\S+Z) on, {HELD}", condition(obj, "Ready")["message"])
    assert found
    assert datetime.now(UTC) < datetime.fromisoformat(found[1])


@asynccontextmanager
async def fighting(dsn: str, statement: str, stands: str) -> AsyncIterator[Fight]:
    """Runs `statement` whenever the query `stands` shows that its effect was reverted.

    The server reports only a session's last statement, so the query runs in a session of its own.
    """
    fight = Fight(anyio.current_time())
    hand = await asyncpg.connect(dsn, server_settings={"application_name": FIGHTER})
    watcher = await asyncpg.connect(dsn)

    async def answer() -> None:
        while True:
            if not await watcher.fetchval(stands):
                await hand.execute(statement)
                fight.answered += 1
            else:
                await anyio.sleep(ANSWERED_EVERY)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            yield fight
            tasks.cancel_scope.cancel()
    finally:
        hand.terminate()
        watcher.terminate()


def stands(role: str, what: str) -> str:
    return f"SELECT {what} FROM pg_roles WHERE rolname = '{role}'"


@pytest.fixture
def shared_dsn(shared_postgres: PostgresServer) -> str:
    return shared_postgres.dsn()


async def test_contested_repairs_slow_down_name_the_other_side_and_end_by_themselves(
    kube: Kube, database: Database, controller: Controller, shared_dsn: str, role: str
) -> None:
    await kube.apply("app", name=role, connectionLimit=7)
    await kube.apply("other", name=f"{role}_other")
    await kube.wait_ready("app")
    await kube.wait_ready("other")
    statement = f"ALTER ROLE {role} CONNECTION LIMIT 99"
    async with fighting(shared_dsn, statement, stands(role, "rolconnlimit = 99")) as fight:
        obj = await kube.wait_for("app", contested("connectionLimit", 5, NAMED), "contested")
        ready = condition(obj, "Ready")
        assert ready["status"] == "False"
        assert condition(obj, "Reconciling")["status"] == "True"
        assert FIGHTER not in ready["message"], "attribution.expose is Minimal"
        assert statement not in ready["message"]
        await kube.wait_event("Contested", about="app")
        obj = await kube.wait_for("app", contested("connectionLimit", 8), "the third slow repair")
        assert anyio.current_time() - fight.began > FIRST_DELAY * (1 + 2 + 4)
        assert fight.is_slow()

        # Another field and another object are repaired immediately, while this field waits for 16 s.
        await database.execute(f"ALTER ROLE {role} SUPERUSER")
        await database.execute(f"ALTER ROLE {role}_other CREATEDB")
        row = await database.wait_role(role, lambda row: not row["rolsuper"], "repaired")
        await database.wait_role(f"{role}_other", lambda row: not row["rolcreatedb"], "repaired")
        assert_not_held_back(obj)
        assert row["rolconnlimit"] == 99
    matches = "now matches the spec"
    await kube.wait_for("app", lambda obj: says(obj, "Contested", matches), "repaired in the end", 2 * PATIENCE)
    assert (await database.role(role) or {})["rolconnlimit"] == 7
    obj = await kube.wait_ready("app", WINDOW + PATIENCE)
    assert condition(obj, "Ready")["reason"] == "Reconciled"
    assert condition(obj, "Reconciling") == {}
    assert is_ready(await kube.get("other") or {})


async def test_application_and_address_are_shown_only_where_the_pgserver_exposes_them(
    api_server: ApiServer, servers: Servers, tmp_path: Path, role: str
) -> None:
    kube = await make_kube(api_server)
    controller = Controller(api_server, "", tmp_path, "--namespace", kube.namespace)
    async with servers.run() as postgres, pgservers(api_server) as declared, running(controller, connected=False):
        await declared.apply("main", postgres, attribution={"expose": "Full"})
        await kube.apply("app", name=role, connectionLimit=7, serverRef={"name": "main"})
        await kube.wait_ready("app")
        limit = stands(role, "rolconnlimit = 99")
        async with fighting(postgres.dsn(), f"ALTER ROLE {role} CONNECTION LIMIT 99", limit):
            shown = (NAMED, FIGHTER, "127.0.0.1")
            await kube.wait_for("app", contested("connectionLimit", 5, *shown), "everything is shown")
            await declared.apply("main", postgres, attribution={"expose": "Minimal"})

            def is_hidden(obj: Json) -> bool:
                return contested("connectionLimit", 5, NAMED)(obj) and FIGHTER not in condition(obj, "Ready")["message"]

            obj = await kube.wait_for("app", is_hidden, "only the user is shown")
            assert "127.0.0.1" not in condition(obj, "Ready")["message"]
    await remove(kube)


#: Field, spec, statement of the other side, and the query that shows whether its effect persists.
CONTESTED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "memberOf",
        {},
        "GRANT pg_monitor TO {}",
        "SELECT count(*) > 0 FROM pg_auth_members WHERE member = '{}'::regrole",
    ),
    (
        "parameters",
        {"parameters": {"statement_timeout": "30s"}},
        "ALTER ROLE {} SET statement_timeout = '1s'",
        "SELECT setconfig = '{{statement_timeout=1s}}' FROM pg_db_role_setting WHERE setrole = '{}'::regrole",
    ),
    (
        "password",
        {"password": {"disabled": True}},
        "ALTER ROLE {} PASSWORD 'of somebody'",
        "SELECT rolpassword IS NOT NULL FROM pg_authid WHERE rolname = '{}'",
    ),
    (
        "comment",
        {"comment": "declared"},
        "COMMENT ON ROLE {} IS 'of somebody'",
        "SELECT shobj_description('{}'::regrole, 'pg_authid') = 'of somebody'",
    ),
]


@dataclass(frozen=True, slots=True)
class ContestScene:
    """An object named `name`, and its role."""

    kube: Kube
    database: Database
    dsn: str
    name: str
    role: str

    async def declare(self, **spec: Any) -> None:
        await self.kube.apply(self.name, name=self.role, **spec)
        await self.kube.wait_ready(self.name)

    async def wait_contested(self, field: str, times: int, *words: str) -> Json:
        return await self.kube.wait_for(self.name, contested(field, times, *words), f"{field} contested {times} times")

    def fighting(self, field: str) -> AbstractAsyncContextManager[Fight]:
        """Fights for a field that `STATEMENTS` has."""
        statement, standing = STATEMENTS[field]
        return fighting(self.dsn, f"ALTER ROLE {self.role} {statement}", standing.replace("$", self.role))


MD5 = "md5" + "a" * 32
#: Statement of the other side after ALTER ROLE, and the query that shows whether its effect persists ($: the role).
STATEMENTS = {
    "connectionLimit": ("CONNECTION LIMIT 99", stands("$", "rolconnlimit = 99")),
    "password": (f"PASSWORD '{MD5}'", f"SELECT rolpassword = '{MD5}' FROM pg_authid WHERE rolname = '$'"),
}


async def test_each_contest_slows_down_only_the_repairs_of_its_own_field(
    kube: Kube, shared_dsn: str, role: str
) -> None:
    """Runs all contests at once, each with its own role, since most of the time is waiting."""
    fields = {f"app-{row[0].lower()}": partial(field_is_contested, *row) for row in CONTESTED}
    scenes: dict[str, Callable[[ContestScene], Coroutine[Any, Any, None]]] = {
        **fields,
        "rotated": a_rotation_is_announced_as_one_while_another_field_is_contested,
        "another-secret": a_changed_secret_is_applied_immediately_despite_a_contested_password,
        "scheduled": a_password_is_rotated_on_schedule_while_it_is_contested,
        "changed": a_changed_spec_is_applied_immediately_and_ends_the_contest,
        "deleted": a_contest_does_not_delay_a_deletion,
        "dropped": a_role_that_is_dropped_repeatedly_is_contested,
    }

    async def play(number: int, name: str) -> None:
        async with open_database(shared_dsn) as database:
            await scenes[name](ContestScene(kube, database, shared_dsn, name, f"{role}_{number:02}"))

    async with anyio.create_task_group() as tasks:
        for number, name in enumerate(scenes):
            tasks.start_soon(play, number, name)


async def field_is_contested(field: str, spec: Json, statement: str, standing: str, scene: ContestScene) -> None:
    await scene.declare(**spec)
    async with fighting(scene.dsn, statement.format(scene.role), standing.format(scene.role)) as fight:
        await scene.wait_contested(field, 5, NAMED)
        obj = await scene.wait_contested(field, 6)
        assert fight.is_slow(), field
    assert "of somebody" not in condition(obj, "Ready")["message"]


async def a_rotation_is_announced_as_one_while_another_field_is_contested(scene: ContestScene) -> None:
    kube, name = scene.kube, scene.name
    await scene.declare(connectionLimit=7, password={"generate": {}}, connectionSecret={"name": "delivered"})
    before = (await kube.wait_secret("delivered"))["text"]["password"]
    first = await kube.wait_event("RoleChanged", about=name)
    async with scene.fighting("connectionLimit"):
        obj = await scene.wait_contested("connectionLimit", 7)
        await kube.patch(name, {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
        secret = await kube.wait_secret("delivered", lambda held: held["text"]["password"] != before, "another")
        await scene.database.wait_password(scene.role, secret["text"]["password"])
        assert_not_held_back(obj)
    await kube.wait_event("PasswordRotated", about=name)
    changed = [event for event in await kube.events("RoleChanged") if event["regarding"]["name"] == name]
    assert changed == [first], "there is no other one"


async def a_changed_secret_is_applied_immediately_despite_a_contested_password(scene: ContestScene) -> None:
    await scene.kube.apply_secret("source", password="declared")
    await scene.declare(login=True, password={"secretRef": {"name": "source"}})
    async with scene.fighting("password") as fight:
        await scene.wait_contested("password", 5, NAMED)
        obj = await scene.wait_contested("password", 8)
        assert MD5 not in condition(obj, "Ready")["message"]
        assert fight.is_slow()
    # The repair is held back for sixteen seconds; another declared password is no drift.
    await scene.kube.apply_secret("source", password="another")
    await scene.database.wait_password(scene.role, "another")
    assert_not_held_back(obj)


async def a_password_is_rotated_on_schedule_while_it_is_contested(scene: ContestScene) -> None:
    await scene.declare(password={"generate": {"rotateEvery": "20s"}}, connectionSecret={"name": "scheduled"})
    before = (await scene.kube.wait_secret("scheduled"))["text"]["password"]
    async with scene.fighting("password"):
        # The next repair is held back until about 30 s after the first one.
        obj = await scene.wait_contested("password", 8)
        await scene.kube.wait_secret("scheduled", lambda held: held["text"]["password"] != before, "another password")
        assert_not_held_back(obj)


async def a_changed_spec_is_applied_immediately_and_ends_the_contest(scene: ContestScene) -> None:
    await scene.declare(connectionLimit=7)
    async with scene.fighting("connectionLimit"):
        obj = await scene.wait_contested("connectionLimit", 8)
        await scene.kube.patch(scene.name, {"spec": {"comment": "changed", "drift": {"ignore": ["connectionLimit"]}}})
        await scene.database.wait_role(scene.role, lambda row: row["comment"] == "changed", "applied")
        assert_not_held_back(obj)
        await scene.kube.wait_ready(scene.name)
        assert (await scene.database.role(scene.role) or {})["rolconnlimit"] == 99


async def a_contest_does_not_delay_a_deletion(scene: ContestScene) -> None:
    await scene.declare(connectionLimit=7, deletionPolicy="Drop")
    statement = f"DO $$ BEGIN ALTER ROLE {scene.role} CONNECTION LIMIT 99; EXCEPTION WHEN undefined_object THEN END $$"
    async with fighting(scene.dsn, statement, stands(scene.role, "rolconnlimit = 99")):
        obj = await scene.wait_contested("connectionLimit", 8)
        await scene.kube.delete(scene.name)
        await scene.kube.wait_gone(scene.name)
        assert_not_held_back(obj)
    assert await scene.database.role(scene.role) is None


async def a_role_that_is_dropped_repeatedly_is_contested(scene: ContestScene) -> None:
    await scene.declare(comment="declared")
    gone = f"SELECT to_regrole('{scene.role}') IS NULL"
    async with fighting(scene.dsn, f"DROP ROLE {scene.role}", gone) as fight:
        await scene.wait_contested("role", 6, NAMED)
        assert fight.is_slow()


async def test_after_a_restart_repairs_of_a_contested_field_slow_down_again(stage: Stage) -> None:
    await stage.kube.apply("app", connectionLimit=7)
    statement, standing = "ALTER ROLE app CONNECTION LIMIT 99", stands("app", "rolconnlimit = 99")
    async with stage.database() as database:
        async with running(stage.controller()):
            await stage.kube.wait_ready("app")
            async with fighting(stage.postgres.dsn(), statement, standing) as fight:
                before = await stage.kube.wait_for("app", contested("connectionLimit", 5, NAMED), "contested")
                assert fight.is_slow()
        said = condition(before, "Ready")["message"]

        def is_said_anew(obj: Json) -> bool:
            return contested("connectionLimit", 5, NAMED)(obj) and condition(obj, "Ready")["message"] != said

        async with fighting(stage.postgres.dsn(), statement, standing) as fight, running(stage.controller()):
            await stage.kube.wait_for("app", is_said_anew, "contested again")
            assert fight.is_slow(more=1)
        async with running(stage.controller()):
            await database.wait_role("app", lambda row: row["rolconnlimit"] == 7, "repaired")
            await stage.kube.wait_ready("app")


async def test_thousands_of_memberships_are_revoked_without_a_contest(stage: Stage) -> None:
    """They are more than one read returns, so they are revoked in parts."""
    count = 8000
    async with running(stage.controller()), stage.database() as database:
        await stage.kube.apply("joined")
        await stage.kube.wait_ready("joined")
        await database.execute(
            f"DO $$ BEGIN FOR n IN 1..{count} LOOP EXECUTE format('CREATE ROLE many_%s', n); END LOOP; END $$"
        )
        await database.execute(
            f"DO $$ BEGIN FOR n IN 1..{count} LOOP EXECUTE format('GRANT many_%s TO joined', n); END LOOP; END $$"
        )
        held = "SELECT count(*) FROM pg_auth_members WHERE member = 'joined'::regrole"
        assert await database.fetchval(held) == count
        await database.wait_value(held, 0)

        def has_ended(obj: Json) -> bool:
            drifted = obj["status"].get("driftCount", 0) > 0
            return drifted and (is_ready(obj) or says(obj, "Contested"))

        assert is_ready(await stage.kube.wait_for("joined", has_ended, "the end"))
