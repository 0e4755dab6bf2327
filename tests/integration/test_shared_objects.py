"""Two roles hold privileges on one object, and one statement changes both: who made it is reported for each."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from pgrole_controller.controller.privileges import database_worker
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile
from pgrole_controller.controller.privileges.privilege_round import run_round
from pgrole_controller.controller.privileges.read_pace import FurtherReads
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, ObjectPrivileges
from pgrole_controller.core.privileges.privilege_result import Evidence, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead
from tests.integration.database_world import (
    DEADLINE,
    KEY,
    OTHER,
    READ,
    SERVER,
    WRITE,
    DatabaseWorkerWorld,
    note_sessions,
)
from tests.integration.test_database_worker import as_alice
from tests.integration.test_own_transactions import SILENT

GRANTED = "GRANT DELETE ON app.orders TO {0}, {1}"
HIDDEN = "DO $$ BEGIN GRANT DELETE ON app.orders TO {0}, {1}; END $$"


def authors(world: DatabaseWorkerWorld, key: Key) -> list[tuple[str, Evidence]]:
    result = world.grantees.results(SERVER, key).get(world.database)
    return [] if result is None else [(one.by.login, one.by.proof) for one in result.last_drifts]


@pytest.mark.parametrize(
    ("statement", "reported", "waits", "live"),
    [  # every pair of values
        (GRANTED, False, False, False),
        (GRANTED, True, True, True),
        (HIDDEN, False, True, True),
        (HIDDEN, True, False, True),
        (HIDDEN, True, True, False),
    ],
)
async def test_who_granted_to_two_roles_is_the_author_for_both(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, statement: str, reported: bool, waits: bool, live: bool
) -> None:
    sessions = note_sessions(monkeypatch)
    grantee = world.declare(READ, report_only=reported)
    if waits:
        missing = ObjectPrivileges(ObjectKind.TABLE, "app", ("missing",), frozenset({"SELECT"}))
        declared = replace(grantee.declared[world.database], objects=(missing,))
        world.grantees.publish(SERVER, replace(grantee, declared={world.database: declared}))
    world.declare_other(READ)
    change = statement.format(world.role, world.other)
    async with world.working():
        await world.wait_other_settled()
        await world.wait(lambda result: (result.error is not None) is waits)
        if live:
            await world.hand.execute(change)
            await world.wait(lambda result: bool(result.last_drifts))
    if not live:
        await world.hand.execute(change)
        async with world.working():
            await world.wait(lambda result: bool(result.last_drifts))
    assert len(sessions) == 1 + (not live)
    await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
    assert authors(world, KEY) == authors(world, OTHER) == [("postgres", Evidence.TRANSACTION)]


@pytest.mark.parametrize("reported", [False, True])
async def test_who_granted_to_two_roles_is_the_author_also_for_one_that_is_due_for_a_complete_read(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    collect = DatabaseWorker._collect

    async def collect_with_the_reader(
        worker: DatabaseWorker, session: DatabaseSession, now: float
    ) -> tuple[PrivilegeRead, frozenset[Key], float]:
        to_read, keys, since = await collect(worker, session, now)
        return to_read, keys | {KEY} if to_read.is_needed else keys, since

    monkeypatch.setattr(DatabaseWorker, "_collect", collect_with_the_reader)
    world.declare(READ, report_only=reported)
    world.declare_other(READ)
    async with world.working():
        await world.wait_other_settled()
        await world.wait_settled()
        await world.hand.execute(GRANTED.format(world.role, world.other))
        await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
        await world.wait(lambda result: bool(result.last_drifts))
    assert authors(world, KEY) == authors(world, OTHER) == [("postgres", Evidence.TRANSACTION)]


async def test_a_reported_drift_that_must_wait_to_be_read_has_its_author_although_another_role_was_repaired(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ, report_only=True)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_other_settled()
        await world.wait_settled()

        def put_off(reads: FurtherReads, keys: frozenset[Key], _now: float) -> frozenset[Key]:
            reads.put_off(keys)
            return frozenset()

        with monkeypatch.context() as full:
            full.setattr(FurtherReads, "admit", put_off)
            full.setattr(FurtherReads, "due", lambda _reads, _now: frozenset())
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")

            async def waits() -> bool:
                return KEY in worker.memory.further._put_off

            assert await reached(waits, DEADLINE)
            await as_alice(world, f"GRANT UPDATE ON app.orders TO {world.other}")
            await world.wait_may("UPDATE", "app.orders", expected=False, role=world.other)
        await world.wait(lambda result: bool(result.last_drifts))
    assert authors(world, KEY) == [("postgres", Evidence.TRANSACTION)]
    assert authors(world, OTHER) == [(world.alice, Evidence.TRANSACTION)]


@pytest.mark.parametrize("statement", [GRANTED, HIDDEN])
async def test_who_granted_to_two_roles_is_the_author_also_for_one_that_was_suspended(
    world: DatabaseWorkerWorld, statement: str
) -> None:
    grantee = world.declare(READ)
    world.declare_other(READ)
    async with world.working():
        await world.wait_other_settled()
        await world.wait_settled()
        world.grantees.publish(SERVER, replace(grantee, suspended=True))
        await world.wait_settled()
        await as_alice(world, statement.format(world.role, world.other))
        await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
        world.grantees.publish(SERVER, grantee)
        await world.wait(lambda result: bool(result.last_drifts))
    assert authors(world, OTHER) == [(world.alice, Evidence.TRANSACTION)]
    known = (world.alice, Evidence.SESSION) if statement is GRANTED else ("", Evidence.NONE)
    assert authors(world, KEY) == [known]


async def test_who_made_a_grant_that_was_corrected_is_not_blamed_for_a_later_one_without_an_event(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await as_alice(world, f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
        assert authors(world, KEY) == [(world.alice, Evidence.TRANSACTION)]
        await world.hand.execute(SILENT.format(r=world.role, t="app.orders"))
        await world.wait(lambda result: result.drift_count == 2)
    assert authors(world, KEY) == [("", Evidence.NONE)]


@pytest.mark.parametrize("reported", [False, True])
async def test_a_drift_just_before_the_claim_forgets_a_former_declaration_is_one(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    begin = anyio.Event()

    async def hold(*arguments: Any) -> list[PrivilegeResult]:
        await begin.wait()
        return await run_round(*arguments)

    grantee = world.declare(READ, report_only=reported)
    former = {world.database: (DatabasePrivileges(world.database, schemas=(WRITE,)),)}
    world.grantees.publish(SERVER, replace(grantee, former=former))
    world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
        monkeypatch.setattr(database_worker, "run_round", hold)
        await world.hand.execute(f"GRANT TRUNCATE ON app.orders TO {world.role}, {world.other}")
        world.grantees.publish(SERVER, grantee)
        begin.set()
        await world.wait_may("TRUNCATE", "app.orders", expected=False, role=world.other)
        result = await world.wait(lambda result: bool(result.last_drifts) and result.confirmed)
        assert (result.drift_count, bool(result.reported)) == (not reported, reported)
        stored = "SELECT split_part(digest, ' ', 1) FROM pgrole.applied WHERE role_oid = $1"
        assert await world.hand.fetchval(stored, world.oid) == grantee.digest_of(world.database)
        assert await world.may("TRUNCATE", "app.orders") is reported
    assert authors(world, KEY) == authors(world, OTHER) == [("postgres", Evidence.TRANSACTION)]


async def test_the_author_stays_known_if_the_object_changes_before_the_repair(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = PrivilegeReconcile._apply
    grantee = world.declare(READ)
    changed = replace(grantee, generation=2)

    async def change_and_apply(*arguments: Any) -> None:
        world.grantees.publish(SERVER, changed)
        await apply(*arguments)

    world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
        monkeypatch.setattr(PrivilegeReconcile, "_apply", change_and_apply)
        await world.hand.execute(HIDDEN.format(world.role, world.other))
        result = await world.wait(lambda result: bool(result.last_drifts))
    assert result.drift_count == 1
    assert authors(world, KEY) == authors(world, OTHER) == [("postgres", Evidence.TRANSACTION)]
