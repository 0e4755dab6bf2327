"""controller/privileges/database_worker: when it tries again, with a real database."""

import math
from dataclasses import replace

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, ObjectPrivileges
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, KEY, READ, SERVER, DatabaseWorkerWorld
from tests.integration.test_database_worker import contest
from tests.integration.test_small_rounds import HeldReads


async def wait_for_rest(worker: DatabaseWorker) -> None:
    """Waits until the worker has nothing to do now: one that is always due would read everything again and again."""

    async def rests() -> bool:
        return worker.asked_at > anyio.current_time()

    assert await reached(rests, DEADLINE), "the worker always has something to do"


async def test_a_role_withdrawn_during_a_round_that_fails_for_it_is_not_retried(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    missing = ObjectPrivileges(ObjectKind.TABLE, "app", ("missing",), frozenset({"SELECT"}))
    declared = DatabasePrivileges(world.database, objects=(missing,))
    plain = world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            world.grantees.publish(SERVER, replace(plain, generation=2, declared={world.database: declared}))
            await held.wait()
            world.grantees.withdraw(SERVER, KEY)
        world.declare_other(READ)
        await world.wait_other_settled()

        async def has_nothing_to_retry() -> bool:
            return worker.asked_at == math.inf

        assert await reached(has_nothing_to_retry, DEADLINE)


async def test_a_contested_repair_that_fails_is_held_back_again(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working() as worker:
        await world.wait_settled()
        await contest(world)
        await other.execute("BEGIN; LOCK TABLE app.orders IN SHARE UPDATE EXCLUSIVE MODE")
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.PROGRESSING)
        await wait_for_rest(worker)
        await other.close()
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_a_database_whose_own_setting_suspended_changes_is_reconciled_after_it_is_reset(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"ALTER DATABASE {world.database} SET pgrole.suspend = on")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.SUSPENDED)
        await world.hand.execute(f"ALTER DATABASE {world.database} RESET pgrole.suspend")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_a_role_published_while_there_is_no_session_causes_one_report(world: DatabaseWorkerWorld) -> None:
    grantees, reports = Grantees(), list[PrivilegeResult]()

    class CountingWorker(DatabaseWorker):
        def report(self, result: PrivilegeResult) -> None:
            reports.append(result)

    plain = world.declare(READ)
    context = DatabaseContext(
        lambda: world.config,
        grantees,
        leadership=None,  # type: ignore[arg-type]
        cluster="c1",
        server=None,  # type: ignore[arg-type]
        home="postgres",
        suspended=lambda: False,
    )
    worker = CountingWorker(world.database, context)
    worker.trouble = Transient(Reason.SERVER_NOT_READY, "down")
    grantees.connect(lambda _server, key, _databases: worker.note_grantee(key), lambda *_: None, lambda *_: False)
    for number in range(10):
        grantees.publish(SERVER, replace(plain, key=Key("shop", f"r{number}"), uid=f"u{number}"))
    elsewhere = {"another": DatabasePrivileges("another", schemas=(READ,))}
    grantees.publish(SERVER, replace(plain, key=Key("shop", "r0"), uid="u0", declared=elsewhere))
    grantees.withdraw(SERVER, Key("shop", "r1"))
    assert [result.key.name for result in reports] == [f"r{number}" for number in range(10)]
