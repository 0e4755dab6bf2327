"""controller/privileges/databases with more databases than may have a connection: the others are served in turn."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges import (
    database_rotation,
    database_worker,
    databases,
    privilege_records,
    read_pace,
)
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.privileges.databases import Databases
from pgrole_controller.controller.privileges.privilege_round import run_round
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges import database_places
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, PrivilegeRule
from pgrole_controller.core.privileges.privilege_result import Evidence, News, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.kube.lease import Term
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.fence import Fence, take_lead
from pgrole_controller.postgres.privileges import acl_batches, database_opening, searches
from tests.integration.database_world import DEADLINE, KEY, POLICY, READ, SERVER
from tests.integration.databases_world import DatabasesWorld, SessionRecord, in_turn, make_databases, state_of

GRANT = "GRANT DELETE ON app.orders TO {}"
REVOKE = "REVOKE SELECT ON app.orders FROM {}"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns follow each other at once, and no database takes the connection of another."""
    monkeypatch.setattr(database_places, "QUIET_SECONDS", 3600.0)
    monkeypatch.setattr(searches, "POLLING_SHARE", 10.0)
    monkeypatch.setattr(database_rotation, "_RETRY", Backoff(0.1, 0.2))
    monkeypatch.setattr(database_rotation, "_REST_TIMES", 0.0)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever changed last has a connection."""
    monkeypatch.setattr(database_places, "QUIET_SECONDS", 0.001)
    monkeypatch.setattr(databases, "EXCHANGE_SECONDS", 0.0)


@pytest_asyncio.fixture(loop_scope="session")
async def three(server: PostgresServer) -> AsyncIterator[DatabasesWorld]:
    async with make_databases(server, 3) as made:
        yield made


def is_placed(served: Databases, name: str) -> bool:
    return state_of(served, name).mode is DatabaseMode.EVENTS


async def test_the_end_of_a_round_is_no_answer_once_the_database_is_not_listed(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that corrects a drift ends although its worker was cancelled, and then its result is reported."""
    name = three.names[0]
    listed, begun, go_on = three.config.databases, anyio.Event(), anyio.Event()

    async def hold(*arguments: Any) -> Any:
        results = await run_round(*arguments)
        if arguments[1].is_needed:
            with anyio.CancelScope(shield=True):
                begun.set()
                await go_on.wait()
            arguments[-1](results)
        return results

    three.declare(name)
    async with three.serving() as served:
        await three.wait_settled(name)
        monkeypatch.setattr(database_worker, "run_round", hold)
        await three.hands[name].execute(GRANT.format(three.role))
        with anyio.fail_after(DEADLINE):
            await begun.wait()
        three.config = replace(three.config, databases=DatabasesConfig(("other",), max=1))
        served.note_config()
        await three.wait(lambda: getattr(three.result(name), "error", None) is not None, "it is no longer listed")
        go_on.set()
        monkeypatch.setattr(database_worker, "run_round", run_round)
        grantee = three.grantees.get(SERVER, KEY)
        assert grantee is not None
        for _ in range(50):
            await anyio.sleep(0.01)
            result = three.result(name)
            assert result is None or result.error is not None or result.digest != grantee.digest_of(name)
        await three.wait(lambda: getattr(three.result(name), "error", None) is not None, "it says so again")
        three.config = replace(three.config, databases=listed)
        served.note_config()
        await three.wait_settled(name)


async def test_only_roles_that_change_are_looked_at_again_in_a_database_that_is_not_listed(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, publishing each of 10,000 roles would look at all of them each time."""
    name, others = three.names[0], [Key("shop", f"other-{number}") for number in range(3)]
    looked_at, results = list[Key](), three.grantees.results

    def look(server: str, key: Key) -> dict[str, PrivilegeResult]:
        looked_at.append(key)
        return results(server, key)

    def are_told(why: str) -> bool:
        told = [results(SERVER, key).get(name) for key in (KEY, *others)]
        return all(one is not None and one.digest and why in str(one.error) for one in told)

    three.config = replace(three.config, databases=DatabasesConfig(("listed",), max=1))
    three.declare(name)
    grantee = three.grantees.get(SERVER, KEY)
    assert grantee is not None
    for key in others:
        three.grantees.publish(SERVER, replace(grantee, key=key))
    monkeypatch.setattr(three.grantees, "results", look)
    async with three.serving() as served:
        await three.wait(lambda: are_told("allowed: listed."), "each is told")
        looked_at.clear()
        three.declare(name, report_only=True)
        assert not are_told("")
        await three.wait(lambda: are_told("allowed: listed."), "the changed one is told again")
        assert set(looked_at) == {KEY}
        three.config = replace(three.config, databases=DatabasesConfig(("another",), max=1))
        served.note_config()
        await three.wait(lambda: are_told("allowed: another."), "each is told the new reason")
    looked_at.clear()
    async with three.run(served):
        await three.wait(lambda: {KEY, *others} <= {*looked_at}, "a new session looks at each")


@pytest.mark.slow
async def test_all_are_served_though_one_has_a_connection(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SessionRecord(monkeypatch)
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        await three.wait(lambda: len(in_turn(served)) == 2, "two are polled")
        assert [state_of(served, name).mode for name in three.names] == [
            DatabaseMode.EVENTS,
            DatabaseMode.POLL,
            DatabaseMode.POLL,
        ]
        assert state_of(served, three.names[1]).message == (
            "polled in turn, like 2 of 3 databases, since PgServer.spec.databases.max is 1: raise it to have changes "
            "noticed sooner"
        )
        assert served.storing() == set(three.names)
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgrole-controller database'"

        async def are_few() -> bool:
            return bool(await three.home.fetchval(sessions) <= 2)

        assert await reached(are_few, DEADLINE), "no more than two sessions"
        three.config = replace(three.config, databases=DatabasesConfig(("*",), max=3))
        served.note_config()
        await three.wait(lambda: all(is_placed(served, name) for name in three.names), "all have a connection")
        three.config = replace(three.config, databases=DatabasesConfig(("*",), max=2))
        served.note_config()
        await three.wait(lambda: len(in_turn(served)) == 1, "one is polled again")
        turns = len(record.begun)
        await three.wait(lambda: len(record.begun) > turns + 2, "it has turns")
    for name in three.names:
        assert await three.may(name, "SELECT")
    assert (record.most, record.most_in) == (3, 1)


async def test_first_turns_do_not_wait_for_the_interval(three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_rotation, "LONGEST_WAIT", 3600.0)
    three.config = replace(three.config, interval=3600.0)
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        await three.wait(lambda: len(in_turn(served)) == 2, "a turn did not end")  # it reports before that


async def test_the_size_of_the_largest_acl_is_known_of_each(three: DatabasesWorld) -> None:
    """Before a table has no room for another role: pg_class has no TOAST table."""
    last = three.names[-1]
    await three.hands[last].execute(
        f"DO $$ BEGIN FOR n IN 1..20 LOOP EXECUTE 'CREATE ROLE {three.role}_' || n;"
        f" EXECUTE 'GRANT SELECT ON app.orders TO {three.role}_' || n; END LOOP; END $$"
    )
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait(lambda: state_of(served, last).largest_acl >= 20, "not read")
        assert state_of(served, last).largest_acl <= 22  # with the owner, and the declared role
        assert state_of(served, three.names[0]).largest_acl <= 2
    await three.hands[last].execute(
        f"DO $$ BEGIN FOR n IN 1..20 LOOP EXECUTE 'DROP OWNED BY {three.role}_' || n;"
        f" EXECUTE 'DROP ROLE {three.role}_' || n; END LOOP; END $$"
    )


async def test_drift_is_set_back_and_attributed_in_a_later_turn(three: DatabasesWorld) -> None:
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        alice = f"{three.role}_alice"
        await three.home.execute(f"CREATE ROLE {alice} LOGIN SUPERUSER PASSWORD 'a'")
        last = three.names[-1]
        hand = await asyncpg.connect(three.server.dsn(alice, password="a", database=last))
        await hand.execute(GRANT.format(three.role))
        await hand.close()
        await three.wait_may(last, "DELETE", expected=False)
        await three.wait(lambda: (result := three.result(last)) is not None and result.drift_count == 1, "counted")
        result = three.result(last)
        assert result is not None
        assert result.last_drift is not None
        assert (result.last_drift.by.login, result.last_drift.by.proof) == (alice, Evidence.TRANSACTION)
        assert last in served.take_recorded()
        assert last not in served.take_recorded()
        # what changed a moment later takes no place yet
        assert is_placed(served, three.names[0])
        assert last in in_turn(served)
        await three.hands[last].execute("CREATE TABLE app.items (id int)")
        await three.wait_may(last, "SELECT", "app.items")
        result = three.result(last)
        assert result is not None
        assert result.drift_count == 1
    await three.home.execute(f"DROP ROLE {alice}")


@pytest.mark.usefixtures("restless")
async def test_the_database_in_which_something_changes_gets_the_connection(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SessionRecord(monkeypatch, ending=0.3)
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        for name in (*three.names[1:], *three.names):
            await three.hands[name].execute(GRANT.format(three.role))
            await three.wait_may(name, "DELETE", expected=False)
            await three.wait(lambda: is_placed(served, name), f"{name} has the connection")  # noqa: B023
            await three.wait(lambda: len(in_turn(served)) == 2, "the others are polled")
        for number, name in enumerate(three.names, 1):
            three.declare(*three.names, writes=three.names[:number])
            await three.wait_settled(*three.names)
            await three.wait(lambda: is_placed(served, name), f"{name} has the connection")  # noqa: B023
    assert record.most_in == 1
    assert record.most <= 3  # one may still be ending


async def test_a_changed_declaration_and_an_altered_database_do_not_wait_for_their_turn(three: DatabasesWorld) -> None:
    three.config = replace(three.config, interval=3600.0)
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        last = three.names[-1]
        three.declare(*three.names, writes=three.names)
        await three.wait_may(last, "UPDATE")
        await three.wait_settled(*three.names)
        await three.home.execute(f"GRANT CREATE ON DATABASE {last} TO {three.role}")
        served.note_databases((last,))

        async def is_revoked() -> bool:
            query = "SELECT NOT has_database_privilege($1, $2, 'CREATE')"
            return bool(await three.home.fetchval(query, three.role, last))

        await three.wait(is_revoked, "CREATE on the database is revoked")

        def is_reported() -> bool:
            result = three.result(last)
            return result is not None and result.drift_count == 1

        await three.wait(is_reported, "nothing more is read in this turn")
        await three.hands[last].execute(f"GRANT TRUNCATE ON app.orders TO {three.role}")
        first = three.names[0]
        await three.hands[first].execute(f"GRANT TRUNCATE ON app.orders TO {three.role}")
        await three.wait_may(first, "TRUNCATE", expected=False)
        assert await three.may(last, "TRUNCATE"), "a turn that nothing asked for"


@pytest.mark.slow
async def test_databases_that_cannot_be_reached_delay_no_other(server: PostgresServer) -> None:
    async with make_databases(server, 6) as some:
        placed, closed, dropped, hanging, stuck, last = some.names
        await some.home.execute(f"ALTER DATABASE {closed} ALLOW_CONNECTIONS false")
        await some.hands[dropped].close()
        await some.home.execute(f"DROP DATABASE {dropped}")
        some.declare(*some.names)
        async with some.serving() as served:
            await some.wait_settled(placed, hanging, stuck, last)
            with pytest.MonkeyPatch.context() as patched:
                for limit in ("OPENING_SECONDS", "TURN_SECONDS"):
                    patched.setattr(database_worker, limit, 1.5)
                holders = [await asyncpg.connect(server.dsn(database=name)) for name in (hanging, stuck)]
                for holder, table in zip(holders, ("pg_default_acl", "pg_event_trigger"), strict=True):
                    await holder.execute(f"BEGIN; LOCK TABLE pg_catalog.{table} IN ACCESS EXCLUSIVE MODE")
                for name, reason, words in (
                    (closed, Reason.DATABASE_ERROR, "does not accept connections"),
                    (dropped, Reason.PRIVILEGE_PENDING, f'"{dropped}" does not exist'),
                    (hanging, Reason.PROGRESSING, "ran out of time in"),
                    (stuck, Reason.PROGRESSING, "ran out of time connecting to"),
                ):

                    def is_told(name: str = name, reason: Reason = reason, words: str = words) -> bool:
                        state, result = state_of(served, name), some.result(name)
                        error = None if result is None else result.error
                        told = error is not None and words in error.message and words in state.message
                        return told and state.mode is None

                    await some.wait(is_told, f"{name} says: {words}")
                await some.hands[last].execute(GRANT.format(some.role))
                await some.wait_may(last, "DELETE", expected=False)
                await some.wait(lambda: served.storing() == {placed, last}, "two have a part of schema pgrole")
                for holder in holders:
                    await holder.close()
            await some.home.execute(f"ALTER DATABASE {closed} ALLOW_CONNECTIONS true")
            served.note_databases((closed,))
            await some.wait_settled(closed, hanging, stuck)
            assert state_of(served, placed).mode is DatabaseMode.EVENTS


async def test_a_database_that_is_opened_during_a_turn_that_fails_has_another_at_once(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_rotation, "_RETRY", Backoff(3600.0, 3600.0))
    last, serve_turn = three.names[-1], DatabaseWorker.serve_turn

    async def take_and_open(worker: DatabaseWorker) -> None:
        await serve_turn(worker)
        if worker.database == last and worker.failures:
            await three.home.execute(f"ALTER DATABASE {last} ALLOW_CONNECTIONS true")
            served.note_databases((last,))

    monkeypatch.setattr(DatabaseWorker, "serve_turn", take_and_open)
    await three.home.execute(f"ALTER DATABASE {last} ALLOW_CONNECTIONS false")
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)


@pytest.mark.slow
async def test_a_new_session_with_the_home_database_begins_with_what_changed_last(three: DatabasesWorld) -> None:
    three.declare(*three.names)
    last = three.names[-1]
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        three.declare(*three.names, writes=(last,))
        await three.wait_settled(*three.names)
        assert is_placed(served, three.names[0])
    assert {one.mode for one in served.states()} == {None}
    async with three.run(served):
        await three.wait(lambda: is_placed(served, last), f"{last} has the connection")


@pytest.mark.parametrize("cause", ["another session with the home database", "not listed for a while"])
async def test_reported_drift_stays_although_nothing_stores_what_was_applied(three: DatabasesWorld, cause: str) -> None:
    """Only the process knows it, and it must not forget it with a worker, on a connection of its own or in turn. Nor
    must it forget which objects were there: others are new.
    """
    names, listed = three.names[:2], three.config.databases
    three.config = replace(three.config, may_install=False)
    for name in names:
        await three.hands[name].execute(queries.remove())
    three.declare(*names, report_only=True)

    def tell(words: str) -> Callable[[], bool]:
        return lambda: all(words in str(three.result(name)) for name in names)

    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(three.serving())
        await three.wait_settled(*names)
        if cause == "not listed for a while":
            three.config = replace(three.config, databases=DatabasesConfig(("other",), max=1))
            served.note_config()
            await three.wait(tell("allowed: other."), "no longer listed")
        else:
            await stack.aclose()
        for name in names:
            await three.hands[name].execute(GRANT.format(three.role))
            await three.hands[name].execute(f"{REVOKE.format(three.role)}; CREATE TABLE app.later ()")
        if cause == "not listed for a while":
            three.config = replace(three.config, databases=listed)
            served.note_config()
        else:
            await stack.enter_async_context(three.run(served))
        await three.wait(tell("DELETE on table app.orders was granted"), "reported")
        assert [await three.may(name, "DELETE") for name in names] == [True, True]
        await three.wait(tell("SELECT on table app.orders was revoked"), "reported, too")
        for name in names:
            await three.wait_may(name, "SELECT", "app.later")
            assert not await three.may(name, "SELECT")
        three.declare(report_only=True)
        left = set[str]()

        def are_left() -> bool:
            left.update(served.take_abandoned())
            return left == {*names}

        await three.wait(are_left, "no role names them")
        three.declare(*names, report_only=True)
        for name in names:
            await three.wait_may(name, "DELETE", expected=False)


@pytest.mark.parametrize("cause", ["another session with the home database", "not listed for a while"])
async def test_a_drift_that_could_not_be_recorded_is_recorded_by_the_next_worker(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(privilege_records, "RECORD_SECONDS", 0.3)
    names, listed, lockers = three.names[:2], three.config.databases, list[Connection]()
    three.declare(*names)

    async def are_recorded() -> bool:
        query = "SELECT coalesce(sum(count), 0) FROM pgrole.history WHERE role = $1"
        return [await three.hands[name].fetchval(query, three.role) for name in names] == [1, 1]

    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(three.serving())
        await three.wait_settled(*names)
        for name in names:
            lockers.append(await asyncpg.connect(three.server.dsn(database=name)))
            await lockers[-1].execute("BEGIN; LOCK TABLE pgrole.drift_history IN SHARE MODE")
            await three.hands[name].execute(GRANT.format(three.role))
            await three.wait_may(name, "DELETE", expected=False)
        await three.wait(lambda: all(getattr(three.result(name), "drift_count", 0) == 1 for name in names), "counted")
        if cause == "not listed for a while":
            three.config = replace(three.config, databases=DatabasesConfig(("other",), max=1))
            served.note_config()
            await three.wait(lambda: all("allowed: other." in str(three.result(name)) for name in names), "not listed")
        else:
            await stack.aclose()
        for locker in lockers:
            await locker.close()
        assert not await are_recorded()
        if cause == "not listed for a while":
            three.config = replace(three.config, databases=listed)
            served.note_config()
        else:
            await stack.enter_async_context(three.run(served))
        await three.wait(are_recorded, "recorded")


@pytest.mark.usefixtures("restless")
async def test_a_database_that_cannot_be_reached_leaves_its_connection_to_another(three: DatabasesWorld) -> None:
    three.declare(three.names[0])
    async with three.serving() as served:
        await three.wait_settled(three.names[0])
        three.declare(*three.names[:2])
        await three.wait_settled(*three.names[:2])
        first, second = sorted(three.names[:2], key=lambda name: not is_placed(served, name))
        await three.home.execute(f"ALTER DATABASE {first} ALLOW_CONNECTIONS false")
        await three.home.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = $1 AND application_name LIKE 'pgrole%'",
            first,
        )
        await three.wait(lambda: is_placed(served, second), f"{second} has the connection")
        await three.home.execute(f"ALTER DATABASE {first} ALLOW_CONNECTIONS true")


@pytest.mark.slow
async def test_what_is_given_up_is_revoked_and_the_database_left(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        first, *others = three.names
        three.declare(first, former=others)
        for name in others:
            await three.wait_may(name, "SELECT", expected=False)
            await three.wait(lambda: (result := three.result(name)) is not None and result.confirmed, name)  # noqa: B023
        three.declare(first)
        await three.wait(lambda: [one.name for one in served.states()] == [first], "the others are left")
        await three.wait(lambda: served.storing() <= {first}, "the others are not served")
        assert served.take_abandoned() == set(others), "their events are pruned from now on"
        assert served.take_abandoned() == set()
        record = SessionRecord(monkeypatch)
        three.declare(*three.names)
        await three.wait_settled(*three.names)
        assert record.most_in == 1


async def test_drift_that_is_only_reported_is_told_once(three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    three.declare(*three.names, report_only=True)
    async with three.serving():
        await three.wait_settled(*three.names)
        three.announced.clear()
        last = three.names[-1]
        await three.hands[last].execute(GRANT.format(three.role))
        await three.wait(lambda: (result := three.result(last)) is not None and bool(result.reported), "reported")
        record = SessionRecord(monkeypatch)
        await three.wait(lambda: record.begun.count(last) > 2, "further turns")
        await three.hands[last].execute("CREATE TABLE app.items (id int)")
        await three.wait_may(last, "SELECT", "app.items")
        told: list[News] = []

        def is_told() -> bool:
            told.extend(one.reason for one in (*three.announced, *three.grantees.take_news(SERVER, KEY)))
            three.announced.clear()
            return News.PRIVILEGES_EXTENDED in told

        await three.wait(is_told, "the new table is told")
        assert sorted(told) == [News.DRIFT_REPORTED, News.PRIVILEGES_EXTENDED]
        assert await three.may(last, "DELETE")


async def test_what_failed_is_tried_again_in_a_turn_of_its_own(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "LOCK_RETRY", Backoff(0.3, 0.3))
    three.config = replace(three.config, interval=3600.0)
    last = three.names[-1]
    holder = await asyncpg.connect(three.server.dsn(database=last))
    await holder.execute("BEGIN; LOCK TABLE app.orders IN SHARE UPDATE EXCLUSIVE MODE")
    three.declare(*three.names)
    async with three.serving():
        await three.wait(
            lambda: (
                (result := three.result(last)) is not None
                and result.error is not None
                and result.error.reason is Reason.PROGRESSING
            ),
            "the lock is told",
        )
        await holder.close()
        await three.wait_settled(last)


@pytest.mark.slow
async def test_more_entries_that_cannot_be_revoked_than_a_turn_has_time_for_keep_no_drift_from_being_reported(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acl_batches, "DIVIDING_SECONDS", 0.3)
    monkeypatch.setattr(read_pace, "LOCK_RETRY", Backoff(0.3, 0.3))
    last, delegate = three.names[-1], f"{three.role}_delegate"
    hand = three.hands[last]
    await hand.execute(f"""
        CREATE ROLE {delegate}; GRANT USAGE ON SCHEMA app TO {delegate};
        DO $$ BEGIN FOR i IN 1..80 LOOP EXECUTE format('CREATE TABLE app.stuck_%s ()', i); END LOOP; END $$;
        GRANT INSERT ON ALL TABLES IN SCHEMA app TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT INSERT ON ALL TABLES IN SCHEMA app TO {three.role}; RESET ROLE;
        ALTER ROLE {delegate} SUPERUSER
    """)
    three.declare(*three.names, report_only=True)
    async with three.serving():
        await three.wait(lambda: "NOSUPERUSER" in str(getattr(three.result(last), "error", "")), "refused")

        async def is_applied() -> bool:
            return bool(await hand.fetchval("SELECT count(*) FROM pgrole.applied"))

        # On a busy machine, each of many turns has time for few of the entries.
        await three.wait(is_applied, "the declaration counts as applied", 240.0)
        await hand.execute(GRANT.format(three.role))
        words = ("DELETE on table app.orders was granted",)
        await three.wait(lambda: getattr(three.result(last), "reported", ()) == words, "reported", 240.0)
    await hand.execute(f"ALTER ROLE {delegate} NOSUPERUSER; DROP OWNED BY {delegate} CASCADE; DROP ROLE {delegate}")


@pytest.mark.slow
async def test_old_events_are_deleted(three: DatabasesWorld) -> None:
    three.declare(*three.names)
    async with three.serving():
        await three.wait_settled(*three.names)
        hand = three.hands[three.names[-1]]
        await hand.execute(
            "INSERT INTO pgrole.ddl_event (at, xid, pid, session, acting, app, tag, command) "
            "VALUES (now() - interval '8 days', '1', 1, '', '', '', '', '')"
        )
        query = "SELECT NOT EXISTS (SELECT FROM pgrole.ddl_event WHERE at < now() - interval '7 days')"

        async def are_gone() -> bool:
            return bool(await hand.fetchval(query))

        await three.wait(are_gone, "old events are deleted")


async def test_nothing_is_detected_between_resyncs_where_resync_is_requested(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.config = replace(three.config, databases=DatabasesConfig(("*",), max=1, detection=DatabaseMode.RESYNC))
    three.declare(*three.names)
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        await three.wait(
            lambda: {state_of(served, name).mode for name in three.names} == {DatabaseMode.RESYNC}, "all are Resync"
        )
        _, second, last = three.names
        record = SessionRecord(monkeypatch)
        await three.hands[last].execute(GRANT.format(three.role))

        def has_turns() -> bool:
            served.note_databases((second,))
            return len(record.begun) > 2

        await three.wait(has_turns, "turns that are asked for")
        assert set(record.begun) == {second}
        assert await three.may(last, "DELETE")


@pytest.mark.parametrize("announced", ["database", "role"])
async def test_what_is_announced_again_and_again_has_a_tenth_of_the_time(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch, announced: str
) -> None:
    """Any role can announce it, and the whole database is read each time."""
    last, serve_turn = three.names[-1], DatabaseWorker.serve_turn
    turns: list[tuple[float, float]] = []

    async def record(worker: DatabaseWorker) -> None:
        began = anyio.current_time()
        await serve_turn(worker)
        if worker.database == last:
            turns.append((began, anyio.current_time()))

    three.config = replace(three.config, databases=DatabasesConfig(("*",), max=1, detection=DatabaseMode.RESYNC))
    creator = f"{three.role}_creator"
    await three.home.execute(f"CREATE ROLE {creator}")
    policy = replace(POLICY, rules=(PrivilegeRule(), PrivilegeRule(owned_by=(creator,))))
    declared = {name: DatabasePrivileges(name, schemas=(READ,), created_by=(creator,)) for name in three.names}
    three.grantees.publish(SERVER, Grantee(KEY, "uid-1", 1, three.role, three.oid, declared, policy=policy))
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        await three.wait(lambda: state_of(served, last).mode is DatabaseMode.RESYNC, "its turn ended")
        monkeypatch.setattr(DatabaseWorker, "serve_turn", record)

        def has_turns() -> bool:
            if announced == "database":
                served.note_databases((last,))
            else:
                served.note_renamed((creator,))
            return len(turns) > 3

        await three.wait(has_turns, "turns that are asked for")
    for (began, ended), (following, _) in pairwise(turns):
        assert following - ended > min(4.0 * (ended - began), 9.0)
    for hand in three.hands.values():
        await hand.execute(f"DROP OWNED BY {creator}")
    await three.home.execute(f"DROP ROLE {creator}")


@pytest.mark.slow
async def test_the_lead_is_taken_once_in_each_and_again_after_another_process(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    term = Term()
    three.leadership = Leadership(term, "i1", "one")
    three.leadership.synced = lambda: True
    taken: list[int] = []

    async def note(*arguments: Any, **options: Any) -> Fence:
        fence = await take_lead(*arguments, **options)
        taken.append(fence.number or 0)
        return fence

    monkeypatch.setattr(database_opening, "take_lead", note)

    async def renew() -> None:
        while True:
            term.hold(anyio.current_time(), anyio.current_time() + 3600.0)
            await term.renewal_requested()
            term.renewal_started()

    record = SessionRecord(monkeypatch)
    last = three.names[-1]
    three.declare(*three.names)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renew)
        await term.stand_by()
        async with three.serving():
            await three.wait_settled(*three.names)
            turns = record.begun.count(last)
            await three.wait(lambda: record.begun.count(last) > turns + 2, "further turns")
            assert len(taken) == 3
            await three.hands[last].execute(
                "SELECT pgrole.lead('i1', pgrole.draw_number('i1'), 'two'); UPDATE pgrole.leader SET heartbeat = NULL"
            )
            await three.hands[last].execute(GRANT.format(three.role))
            await three.wait_may(last, "DELETE", expected=False)
            assert len(taken) == 4
        tasks.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_turn_with_nothing_to_do_writes_nothing(three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    three.declare(*three.names)
    async with three.serving():
        await three.wait_settled(*three.names)
        record = SessionRecord(monkeypatch)
        last = three.names[-1]
        await three.wait(lambda: record.begun.count(last) > 2, "further turns")

        async def is_unwritten() -> bool:
            """Transactions are numbered for the whole server: autovacuum takes numbers, too, but not all the time."""
            number = "SELECT pg_current_xact_id()::text::bigint"
            before, turns = await three.hands[last].fetchval(number), len(record.begun)
            await three.wait(lambda: len(record.begun) > turns + 4, "further turns")
            return bool(await three.hands[last].fetchval(number) == before + 1)

        await three.wait(is_unwritten, "four turns without a write")


@pytest.mark.slow
async def test_a_creator_that_is_created_ends_the_wait_for_it_at_once(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "RETRY", Backoff(3600.0, 3600.0))
    three.config = replace(three.config, interval=3600.0)
    creator = f"{three.role}_creator"
    policy = replace(POLICY, rules=(PrivilegeRule(), PrivilegeRule(owned_by=(creator,))))
    declared = {name: DatabasePrivileges(name, schemas=(READ,), created_by=(creator,)) for name in three.names}
    three.grantees.publish(SERVER, Grantee(KEY, "uid-1", 1, three.role, three.oid, declared, policy=policy))

    def waits(name: str) -> bool:
        result = three.result(name)
        return result is not None and result.error is not None and result.error.reason is Reason.PRIVILEGE_PENDING

    async with three.serving() as served:
        for name in three.names:
            await three.wait(lambda: waits(name), f"{name} waits")  # noqa: B023 -- awaited here
        await three.home.execute(f"CREATE ROLE {creator}")
        served.note_roles((creator,))
        await three.wait_settled(*three.names)
    for hand in three.hands.values():
        await hand.execute(f"DROP OWNED BY {creator}")
    await three.home.execute(f"DROP ROLE {creator}")


async def test_a_creator_that_is_renamed_is_missed_at_once(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "RETRY", Backoff(3600.0, 3600.0))
    three.config = replace(three.config, interval=3600.0)
    creator, renamed = f"{three.role}_creator", f"{three.role}_renamed"
    policy = replace(POLICY, rules=(PrivilegeRule(), PrivilegeRule(owned_by=(creator,))))
    declared = {name: DatabasePrivileges(name, schemas=(READ,), created_by=(creator,)) for name in three.names}
    await three.home.execute(f"CREATE ROLE {creator}")
    three.grantees.publish(SERVER, Grantee(KEY, "uid-1", 1, three.role, three.oid, declared, policy=policy))

    def misses(name: str) -> bool:
        result = three.result(name)
        return result is not None and result.error is not None and creator in result.error.message

    async with three.serving() as served:
        await three.wait_settled(*three.names)
        await three.home.execute(f"ALTER ROLE {creator} RENAME TO {renamed}")
        served.note_renamed((creator, renamed))
        for name in three.names:
            await three.wait(lambda: misses(name), f"{name} misses it")  # noqa: B023 -- awaited here
    for hand in three.hands.values():
        await hand.execute(f"DROP OWNED BY {renamed}")
    await three.home.execute(f"DROP ROLE {renamed}")


async def test_a_creator_that_keeps_its_name_causes_no_reads(
    three: DatabasesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each change of the role that creates a team's objects would cause a complete read for every reader."""
    creator = f"{three.role}_creator"
    policy = replace(POLICY, rules=(PrivilegeRule(), PrivilegeRule(owned_by=(creator,))))
    declared = {name: DatabasePrivileges(name, schemas=(READ,), created_by=(creator,)) for name in three.names}
    await three.home.execute(f"CREATE ROLE {creator}")
    three.grantees.publish(SERVER, Grantee(KEY, "uid-1", 1, three.role, three.oid, declared, policy=policy))
    noted: list[frozenset[Key]] = []
    monkeypatch.setattr(DatabaseWorker, "note_awaited", lambda _worker, keys: noted.append(keys))
    async with three.serving() as served:
        await three.wait_settled(*three.names)
        served.note_roles((creator,))
        served.note_roles(None)
        assert noted == []
        served.note_renamed(("another",))
        assert noted == []
        served.note_renamed((creator,))
        assert noted == [frozenset({KEY})] * len(three.names)
    for hand in three.hands.values():
        await hand.execute(f"DROP OWNED BY {creator}")
    await three.home.execute(f"DROP ROLE {creator}")
