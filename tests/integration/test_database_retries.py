"""controller/privileges/database_worker: when it tries again, with a real database."""

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.privileges import database_worker, read_pace
from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, ObjectPrivileges
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.privileges import database_opening, database_session
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import Scope
from tests.integration.database_world import DEADLINE, KEY, READ, SERVER, DatabaseWorkerWorld
from tests.integration.test_database_worker import contest, declare_with_creator, note_rounds
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


@pytest.mark.parametrize("mode", [DatabaseMode.EVENTS, DatabaseMode.POLL, DatabaseMode.RESYNC])
async def test_the_controller_leaves_a_closed_database_that_no_one_announces(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, mode: DatabaseMode
) -> None:
    if mode is DatabaseMode.RESYNC:
        monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 1.0)
    world.config = replace(world.config, databases=DatabasesConfig(("*",), detection=mode))
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS false")
        try:
            await world.wait(lambda result: "ALLOW_CONNECTIONS true" in str(result.error))
            assert worker.mode is None
        finally:
            await world.home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS true")


async def test_a_database_that_becomes_a_template_is_left_until_it_is_none(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    copy = f"{world.database}_copy"
    async with world.working() as worker:
        await world.wait_settled()
        await world.home.execute(f"ALTER DATABASE {world.database} IS_TEMPLATE true")
        try:
            await world.wait(lambda result: "it is a template" in str(result.error))
            assert worker.mode is None
            await world.hand.close()
            with anyio.fail_after(DEADLINE):
                await world.home.execute(f"CREATE DATABASE {copy} TEMPLATE {world.database}")
        finally:
            await world.home.execute(f"ALTER DATABASE {world.database} IS_TEMPLATE false")
            await world.home.execute(f"DROP DATABASE IF EXISTS {copy}")
        await world.wait_settled()


async def test_a_template_that_the_servers_owner_names_is_kept(world: DatabaseWorkerWorld) -> None:
    world.config = replace(world.config, databases=DatabasesConfig((world.database,)))
    world.declare(READ)
    await world.home.execute(f"ALTER DATABASE {world.database} IS_TEMPLATE true")
    try:
        async with world.working():
            await world.wait_settled()
    finally:
        await world.home.execute(f"ALTER DATABASE {world.database} IS_TEMPLATE false")


# What any role can announce in the home database.


def rest_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that others cause is done a second time."""
    for name in ("_REST_TIMES", "_LONGEST_REST"):
        monkeypatch.setattr(read_pace, name, 1e9)


async def test_announcements_that_a_role_was_created_cause_no_complete_reads_without_pause(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_forever(monkeypatch)
    monkeypatch.setattr(read_pace, "RETRY", Backoff(3600.0, 3600.0))
    declared = DatabasePrivileges(world.database, schemas=(READ,), created_by=(f"{world.role}_ghost",))
    world.grantees.publish(SERVER, replace(world.declare(READ), generation=2, declared={world.database: declared}))
    rounds, before = note_rounds(monkeypatch), 0

    async def has_ended() -> bool:
        return len(rounds) > before

    async with world.working() as worker:
        assert await reached(has_ended, DEADLINE)
        for _ in range(4):
            before = len(rounds)
            worker.note_awaited(frozenset({KEY}))
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
            assert await reached(has_ended, DEADLINE)
        assert sum(Scope.FULL in one for one in rounds) == 2, "the first one, and one for what is missing"


@pytest.mark.parametrize("scope", [Scope.FULL, Scope.NOTHING])
async def test_a_rename_that_is_announced_while_everything_is_read_is_read_afterwards(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    """`scope`: of the read for all roles; Scope.NOTHING: only the role's own privileges are read."""
    reads = HeldReads(monkeypatch)
    creator = await declare_with_creator(world)
    async with world.working() as worker:
        await world.wait_settled()
        await wait_for_rest(worker)
        async with reads.hold() as held:
            if scope is Scope.FULL:
                worker.note_everything()
            else:
                worker.note_grantee(KEY)
            await held.wait()
            await world.home.execute(f"ALTER ROLE {creator} RENAME TO {creator}_renamed")
            worker.note_awaited(frozenset({KEY}))
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.PRIVILEGE_PENDING
    await world.hand.execute(f"DROP OWNED BY {creator}_renamed")
    await world.home.execute(f"DROP ROLE {creator}_renamed")


async def test_announcements_that_the_database_changed_cause_no_checks_without_pause(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_forever(monkeypatch)
    check, checks = DatabaseSession.check_database, list[None]()

    async def count(session: DatabaseSession) -> None:
        checks.append(None)
        await check(session)

    monkeypatch.setattr(DatabaseSession, "check_database", count)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        for _ in range(4):
            worker.note_database()
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
        assert len(checks) == 1


async def test_announcements_that_a_database_changed_cause_no_attempts_to_connect_without_pause(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_worker, "_RECONNECT", Backoff(3600.0, 3600.0))
    open_database, attempts = database_opening.open_database, list[float]()

    def count(*arguments: Any, **options: Any) -> AbstractAsyncContextManager[DatabaseSession]:
        attempts.append(anyio.current_time())
        return open_database(*arguments, **options)

    monkeypatch.setattr(database_worker, "open_database", count)
    world.declare(READ)
    home = await asyncpg.connect(world.server.dsn())
    await home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS false")
    began = anyio.current_time()
    async with world.working() as worker:

        async def has_tried() -> bool:
            worker.note_database()
            return len(attempts) >= 3

        assert await reached(has_tried, DEADLINE)
        assert attempts[2] - began >= 2.0
        await home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS true")
        worker.note_database()
        await world.wait_settled()
    await home.close()


async def test_a_database_that_is_opened_while_an_attempt_fails_is_tried_again_at_once(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_worker, "_RECONNECT", Backoff(3600.0, 3600.0))
    home, workers = await asyncpg.connect(world.server.dsn()), list[DatabaseWorker]()

    @asynccontextmanager
    async def open_late(*arguments: Any, **options: Any) -> AsyncIterator[DatabaseSession]:
        try:
            async with database_opening.open_database(*arguments, **options) as session:
                yield session
        except PgRoleError:
            await home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS true")
            workers[0].note_database()
            raise

    monkeypatch.setattr(database_worker, "open_database", open_late)
    world.declare(READ)
    await home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS false")
    async with world.working() as worker:
        workers.append(worker)
        await world.wait_settled()
        assert worker.failures == 1
    await home.close()
