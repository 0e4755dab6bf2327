"""What a round in a database still changes after an object, or the policy of its server, has changed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges.grantee import Grantee, PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeResult
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.privileges import acl_apply
from pgrole_controller.postgres.privileges.acl_transaction import AclTransactions
from tests.integration.database_world import DEADLINE, KEY, READ, SERVER, DatabaseWorkerWorld, make_world

TABLES = 12
NARROWED = PrivilegePolicy(rules=(PrivilegeRule(schemas=("elsewhere",)),), databases=("*",))


@pytest_asyncio.fixture(loop_scope="session")
async def world(server: PostgresServer) -> AsyncIterator[DatabaseWorkerWorld]:
    async with make_world(server) as made:
        await made.hand.execute(
            f"DO $$ BEGIN FOR i IN 1..{TABLES} LOOP EXECUTE format('CREATE TABLE app.t%s ()', i); END LOOP; END $$"
        )
        yield made


class HeldTransactions:
    """Each object is changed in a transaction of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._committed, self._go_on = anyio.Event(), anyio.Event()
        self._go_on.set()
        run = AclTransactions.run

        async def run_and_wait(transactions: AclTransactions, repairs: Any, *arguments: Any, **options: Any) -> None:
            await run(transactions, repairs, *arguments, **options)
            if repairs:
                self._committed.set()
                await self._go_on.wait()

        monkeypatch.setattr(AclTransactions, "run", run_and_wait)
        monkeypatch.setattr(acl_apply, "OBJECTS", 1)

    def hold(self) -> None:
        """The next one is held after its commit."""
        self._committed, self._go_on = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """One is held meanwhile."""
        with anyio.fail_after(DEADLINE):
            await self._committed.wait()
        yield
        self._go_on.set()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> HeldTransactions:
    return HeldTransactions(monkeypatch)


async def count(world: DatabaseWorkerWorld, privilege: str, role: str = "") -> int:
    """Returns on how many of the tables the role has the privilege."""
    query = f"SELECT count(*) FROM generate_series(1, {TABLES}) AS n WHERE has_table_privilege($1, 'app.t' || n, $2)"
    return int(await world.hand.fetchval(query, role or world.role, privilege))


def narrow(grantee: Grantee) -> Grantee:
    return replace(grantee, policy=NARROWED)


def suspend(grantee: Grantee) -> Grantee:
    return replace(grantee, suspended=True)


def lose_owned(grantee: Grantee) -> Grantee:
    """The namespace no longer owns the role that owns the tables."""
    return replace(grantee, policy=PrivilegePolicy(databases=("*",)), owned=frozenset())


@pytest.mark.parametrize("change", [narrow, suspend, lose_owned])
async def test_after_the_next_transaction_nothing_is_granted_that_is_no_longer_allowed(
    world: DatabaseWorkerWorld, transactions: HeldTransactions, change: Callable[[Grantee], Grantee]
) -> None:
    owner = await world.hand.fetchval("SELECT 'postgres'::regrole::oid::bigint")
    declared = replace(world.declare(READ), owned=frozenset({owner}))
    if change is lose_owned:
        declared = replace(declared, policy=PrivilegePolicy(databases=("*",)))
    world.grantees.publish(SERVER, declared)
    other = world.declare_other(READ)
    transactions.hold()
    async with world.working():
        async with transactions.holding():
            world.grantees.publish(SERVER, changed := change(declared))
            before = await count(world, "SELECT")
        reason = None if changed.suspended else Reason.NOT_ALLOWED
        await world.wait(lambda result: (result.error.reason if result.error else None) is reason)
        await world.wait_may("SELECT", f"app.t{TABLES}", role=other)
        assert await count(world, "SELECT") == before < TABLES
        assert await count(world, "SELECT", other) == TABLES
        await world.wait_other_settled()

        world.grantees.publish(SERVER, declared)
        await world.wait_may("SELECT", f"app.t{TABLES}")
        result = await world.wait_settled()
    assert result.drift_count == 0
    assert await count(world, "SELECT") == TABLES


async def test_a_role_that_was_withdrawn_is_granted_nothing_more(
    world: DatabaseWorkerWorld, transactions: HeldTransactions
) -> None:
    world.declare(READ)
    transactions.hold()
    async with world.working():
        async with transactions.holding():
            world.grantees.withdraw(SERVER, KEY)
            before = await count(world, "SELECT")
            other = world.declare_other(READ)
        await world.wait_may("SELECT", f"app.t{TABLES}", role=other)
        await world.wait_other_settled()
        assert await count(world, "SELECT") == before < TABLES


async def test_drift_that_was_not_yet_corrected_when_the_policy_became_report_is_reported(
    world: DatabaseWorkerWorld, transactions: HeldTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[PrivilegeResult] = []
    report = world.grantees.report

    def note(server: str, result: PrivilegeResult) -> None:
        results.append(result)
        report(server, result)

    monkeypatch.setattr(world.grantees, "report", note)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        world.news()
        transactions.hold()
        await world.hand.execute(f"GRANT DELETE ON ALL TABLES IN SCHEMA app TO {world.role}")
        async with transactions.holding():
            declared = world.declare(READ, report_only=True)
            results.clear()
            before = await count(world, "DELETE")
        result = await world.wait(lambda result: bool(result.reported))
        assert await count(world, "DELETE") == before > 0
        assert result.drift_count == 1
        answers = [one for one in results if one.digest == declared.digest_of(world.database)]
        assert answers
        assert all(one.reported for one in answers), "the end of the round before is no answer"
        assert [reason for reason, _ in world.news()] == [News.DRIFT_CORRECTED, News.DRIFT_REPORTED]
        assert await world.count_drifts() == 2


async def test_more_roles_of_the_namespace_interrupt_nothing(
    world: DatabaseWorkerWorld, transactions: HeldTransactions
) -> None:
    declared = world.declare(READ)
    transactions.hold()
    async with world.working():
        async with transactions.holding():
            world.grantees.publish(SERVER, replace(declared, owned=frozenset({world.oid})))

        async def are_granted() -> bool:
            return await count(world, "SELECT") == TABLES

        assert await reached(are_granted, DEADLINE)
        await world.wait_settled()
