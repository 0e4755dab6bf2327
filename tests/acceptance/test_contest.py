"""Something else sets a role back as often as it is repaired: it is repaired more and more slowly, and said."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.core.contest import FIRST_DELAY, LIMIT, WINDOW
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import Controller, Database, Json, Kube, Stage, condition, is_ready, running, says

FIGHTER = "fighter's tool"

#: For a drift that nobody contests to be repaired, in seconds: generous, and less than the first delay of a contest.
AT_ONCE = 1.5


@pytest.fixture
def role() -> str:
    return f"role_{secrets.token_hex(4)}"


@dataclass
class Fight:
    """How often the role was set back by us and had to be changed again."""

    answered: int = 0


@asynccontextmanager
async def fighting(dsn: str, statement: str, stands: str) -> AsyncIterator[Fight]:
    """Meanwhile somebody runs `statement` whenever the query `stands` says that it does not stand any more.

    What a session said last is all that the server tells of it, so it looks in a session of its own.
    """
    fight = Fight()
    hand = await asyncpg.connect(dsn, server_settings={"application_name": FIGHTER})
    eye = await asyncpg.connect(dsn)

    async def answer() -> None:
        while True:
            if not await eye.fetchval(stands):
                await hand.execute(statement)
                fight.answered += 1
            else:
                await anyio.sleep(0.01)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            yield fight
            tasks.cancel_scope.cancel()
    finally:
        hand.terminate()
        eye.terminate()


def stands(role: str, what: str) -> str:
    return f"SELECT {what} FROM pg_roles WHERE rolname = '{role}'"


@pytest.fixture
def shared_dsn(shared_postgres: PostgresServer) -> str:
    return shared_postgres.dsn()


async def test_a_fight_slows_down_names_who_and_ends_by_itself(
    kube: Kube, database: Database, controller: Controller, shared_dsn: str, role: str
) -> None:
    await kube.apply("app", name=role, connectionLimit=7)
    await kube.apply("other", name=f"{role}_other")
    await kube.wait_ready("app")
    await kube.wait_ready("other")
    statement = f"ALTER ROLE {role} CONNECTION LIMIT 99"
    async with fighting(shared_dsn, statement, stands(role, "rolconnlimit = 99")) as fight:
        began = anyio.current_time()
        obj = await kube.wait_for(
            "app", lambda obj: says(obj, "Contested", "connectionLimit", "set back 5 times", FIGHTER), "contested"
        )
        ready = condition(obj, "Ready")
        assert ready["status"] == "False"
        assert condition(obj, "Reconciling")["status"] == "True"
        assert 'user "postgres"' in ready["message"]
        assert statement not in ready["message"]
        assert "is set back again at" in ready["message"]
        await kube.wait_event("Contested", about="app")

        # Another field, and another object, are repaired within the usual time.
        await database.execute(f"ALTER ROLE {role} SUPERUSER")
        await database.wait_role(role, lambda row: not row["rolsuper"], "set back", AT_ONCE)
        await database.execute(f"ALTER ROLE {role}_other CREATEDB")
        await database.wait_role(f"{role}_other", lambda row: not row["rolcreatedb"], "set back", AT_ONCE)
        assert (await database.role(role) or {})["rolconnlimit"] == 99

        # After 2, 6, 14 and 30 s.
        await kube.wait_for("app", lambda obj: says(obj, "Contested", "set back 8 times"), "the third slow repair", 30)
        lasted = anyio.current_time() - began
        assert lasted > FIRST_DELAY * (1 + 2 + 4) - 1
        assert fight.answered <= LIMIT + 1 + 3
    await database.wait_role(role, lambda row: row["rolconnlimit"] == 7, "set back in the end")
    obj = await kube.wait_for("app", lambda obj: says(obj, "Contested", "is as declared now"), "watched")
    obj = await kube.wait_ready("app", WINDOW + 30)
    assert condition(obj, "Ready")["reason"] == "Reconciled"
    assert condition(obj, "Reconciling") == {}
    assert is_ready(await kube.get("other") or {})


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


@pytest.mark.parametrize(("field", "spec", "statement", "stands"), CONTESTED, ids=[row[0] for row in CONTESTED])
async def test_every_kind_of_field_can_be_contested(
    kube: Kube, shared_dsn: str, role: str, field: str, spec: Json, statement: str, stands: str
) -> None:
    await kube.apply("app", name=role, **spec)
    await kube.wait_ready("app")
    async with fighting(shared_dsn, statement.format(role), stands.format(role)) as fight:
        await kube.wait_for("app", lambda obj: says(obj, "Contested", f"{field}: set back 5 times", FIGHTER), field)
        obj = await kube.wait_for("app", lambda obj: says(obj, "Contested", f"{field}: set back 6 times"), field)
        assert fight.answered <= LIMIT + 2
    assert "of somebody" not in condition(obj, "Ready")["message"]


async def test_a_password_from_a_secret_is_contested_and_a_new_one_in_the_secret_is_set_at_once(
    kube: Kube, database: Database, controller: Controller, shared_dsn: str, role: str
) -> None:
    await kube.apply_secret("source", password="declared")
    await kube.apply("app", name=role, login=True, password={"secretRef": {"name": "source"}})
    await kube.wait_ready("app")
    md5 = "md5" + "a" * 32
    standing = f"SELECT rolpassword = '{md5}' FROM pg_authid WHERE rolname = '{role}'"
    async with fighting(shared_dsn, f"ALTER ROLE {role} PASSWORD '{md5}'", standing) as fight:
        await kube.wait_for("app", lambda obj: says(obj, "Contested", "password: set back 5 times", FIGHTER), "fifth")
        obj = await kube.wait_for("app", lambda obj: says(obj, "Contested", "password: set back 6 times"), "sixth")
        assert md5 not in condition(obj, "Ready")["message"]
        assert fight.answered <= LIMIT + 2
        await kube.wait_for("app", lambda obj: says(obj, "Contested", "6 times", "is set back again at"), "held back")
    # It is held back for four seconds; another password is no drift.
    await kube.apply_secret("source", password="another")
    await database.wait_password(role, "another", AT_ONCE)


async def test_a_changed_spec_is_applied_at_once_and_ends_the_contest(
    kube: Kube, database: Database, shared_dsn: str, role: str
) -> None:
    await kube.apply("app", name=role, connectionLimit=7)
    await kube.wait_ready("app")
    statement, standing = f"ALTER ROLE {role} CONNECTION LIMIT 99", stands(role, "rolconnlimit = 99")
    async with fighting(shared_dsn, statement, standing):
        await kube.wait_reason("app", "Contested")
        await kube.patch("app", {"spec": {"comment": "changed", "drift": {"ignore": ["connectionLimit"]}}})
        await database.wait_role(role, lambda row: row["comment"] == "changed", "applied", AT_ONCE)
        await kube.wait_ready("app", 10)
        assert (await database.role(role) or {})["rolconnlimit"] == 99


async def test_a_deletion_is_not_held_back(kube: Kube, database: Database, shared_dsn: str, role: str) -> None:
    await kube.apply("app", name=role, connectionLimit=7, deletionPolicy="Drop")
    await kube.wait_ready("app")
    statement, standing = f"ALTER ROLE {role} CONNECTION LIMIT 99", stands(role, "rolconnlimit = 99")
    async with fighting(shared_dsn, f"DO $$ BEGIN {statement}; EXCEPTION WHEN undefined_object THEN END $$", standing):
        await kube.wait_reason("app", "Contested")
        await kube.delete("app")
        await kube.wait_gone("app", 10)
    assert await database.role(role) is None


async def test_a_role_that_is_dropped_again_and_again_is_contested(kube: Kube, shared_dsn: str, role: str) -> None:
    await kube.apply("app", name=role, comment="declared")
    await kube.wait_ready("app")
    gone = f"SELECT to_regrole('{role}') IS NULL"
    async with fighting(shared_dsn, f"DROP ROLE {role}", gone) as fight:
        await kube.wait_for("app", lambda obj: says(obj, "Contested", "role: set back 6 times", FIGHTER), "contested")
        assert fight.answered <= LIMIT + 2


async def test_after_a_restart_in_the_middle_of_a_fight_it_slows_down_again(stage: Stage) -> None:
    await stage.kube.apply("app", connectionLimit=7)
    statement, standing = "ALTER ROLE app CONNECTION LIMIT 99", stands("app", "rolconnlimit = 99")
    async with stage.database() as database:

        async def contested() -> Json:
            return await stage.kube.wait_for(
                "app", lambda obj: says(obj, "Contested", "set back 5 times", FIGHTER), "contested"
            )

        async with running(stage.controller()):
            await stage.kube.wait_ready("app")
            async with fighting(stage.postgres.dsn(), statement, standing) as fight:
                await contested()
        first = fight.answered
        async with fighting(stage.postgres.dsn(), statement, standing) as fight, running(stage.controller()):
            await contested()
            assert first <= LIMIT + 2
            assert fight.answered <= LIMIT + 3
        async with running(stage.controller()):
            await database.wait_role("app", lambda row: row["rolconnlimit"] == 7, "set back")
            await stage.kube.wait_ready("app")
