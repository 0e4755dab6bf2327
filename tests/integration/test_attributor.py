"""controller/attributor with a real home database: what it asks and records when sources and the history fail."""

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.controller import attributor as attributor_module
from pgrole_controller.controller.attributor import MOST_WAITING, Attributor
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.audit_line import ChangedRole
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.request import Key
from pgrole_controller.core.role_drift import RoleDrift
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import Identity, identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.drift_history import record_at_home
from pgrole_controller.postgres.role_attribution import RoleAttribution
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.session import Session

DEADLINE = 45.0
KEY = Key("shop", "app")
NOW = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
DRIFT = RoleDrift("app", 20_000, "uid-1", ("login",), True, NOW, {"login": {"declared": "false", "observed": "true"}})


class HistoryHome:
    """The home database, an attributor, and what it asked to be reconciled."""

    def __init__(self, dsn: str, hand: Connection, server: Identity) -> None:
        self.hand, self.server = hand, server
        self.config = ServerConfig("main", Endpoint(dsn), ServerPolicy(), Address("pg", 5432, "o", "require"))
        self.found: list[Key] = []
        self.attributor = Attributor(lambda: self.config, "c1", self.found.append)

    @asynccontextmanager
    async def running(self, *, keeps: bool = True, server: Identity | None = None) -> AsyncIterator[None]:
        """`server`: of the session; None: that of the home database."""
        identity = server or self.server
        session = SimpleNamespace(has_current_schema=keeps, claims=DatabaseClaims(), fence=None, identity=identity)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.attributor.run, cast("Session", session))
            yield
            tasks.cancel_scope.cancel()

    async def rows(self) -> list[tuple[Any, ...]]:
        rows = await self.hand.fetch("SELECT role, fields, count, corrected FROM pgrole.history ORDER BY at, role")
        return [tuple(row) for row in rows]

    async def wait_rows(self, true: Callable[[list[tuple[Any, ...]]], bool]) -> None:
        async def is_so() -> bool:
            return true(await self.rows())

        assert await reached(is_so, DEADLINE), await self.rows()


@pytest_asyncio.fixture(loop_scope="session")
async def home(postgres_server: PostgresServer, database: str) -> AsyncIterator[HistoryHome]:
    async with connect(Endpoint(database), "work") as hand:
        await hand.execute("SET application_name = 'psql'")
        await install(hand)
        yield HistoryHome(database, hand, await identify(hand))


async def test_equal_drifts_within_a_minute_share_one_counted_row(home: HistoryHome) -> None:
    async with home.running():
        for seconds in (0, 5, 10, 40):
            home.attributor.note(KEY, replace(DRIFT, at=NOW + timedelta(seconds=seconds)))
            await anyio.sleep(0.05)
        await home.wait_rows(lambda rows: rows == [("app", ["login"], 3, True), ("app", ["login"], 1, True)])
        details = await home.hand.fetchval("SELECT details ->> 'login' FROM pgrole.history LIMIT 1")
        assert "observed" in details


async def test_drifts_are_recorded_on_the_server_of_the_session_only(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover, the same address may lead to the former primary, where the same process leads."""
    monkeypatch.setattr(attributor_module, "_RETRY", Backoff(0.05, 0.05))
    former = replace(home.server, started_at=home.server.started_at - timedelta(seconds=1))
    async with home.running(server=former):
        home.attributor.note(KEY, DRIFT)
        await anyio.sleep(0.5)
    assert await home.rows() == []
    async with home.running():
        await home.wait_rows(lambda rows: rows == [("app", ["login"], 1, True)])


async def test_different_drifts_of_one_field_within_a_minute_have_a_row_each(home: HistoryHome) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    joined = [{"memberOf": {"declared": "", "observed": group}} for group in ("dba", "payroll")]
    times = [minute + timedelta(seconds=seconds) for seconds in range(4)]
    rows = [("app", ["memberOf"], 2, True)] * 2
    async with home.running():
        for place, at in enumerate(times):
            home.attributor.note(KEY, replace(DRIFT, fields=("memberOf",), at=at, values=joined[place % 2]))
        await home.wait_rows(lambda found: found == rows)
    said = await home.hand.fetch("SELECT details -> 'memberOf' ->> 'observed' FROM pgrole.history ORDER BY 1")
    assert [tuple(row) for row in said] == [("dba",), ("payroll",)]
    owner = Owner("c1", "shop", "n1", "app", "uid-1")
    claim = Claim("app", 20_000, 7, owner, applied="x", last_drift_at=times[-1], last_drift_fields=("memberOf",))
    home.attributor = Attributor(lambda: home.config, "c1", home.found.append)
    async with home.running():
        home.attributor.note_claim(claim)
        await anyio.sleep(0.3)
    assert await home.rows() == rows, "a restarted controller knows only the claim"


async def test_equal_drifts_of_two_people_within_a_minute_have_a_row_each(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    authors = {
        0: DriftAuthor(Evidence.TRANSACTION, "alice"),
        1: DriftAuthor(),
        2: DriftAuthor(Evidence.TRANSACTION, "bob"),
        3: DriftAuthor(Evidence.LOG, "alice"),
        4: DriftAuthor(Evidence.LOG, "bob"),
    }

    async def find(_self: object, _connection: Connection, changed: ChangedRole) -> DriftAuthor:
        return authors[changed.xmins[0]]

    monkeypatch.setattr(RoleAttribution, "find_author", find)
    async with home.running():
        for number in authors:
            home.attributor.note(KEY, replace(DRIFT, at=NOW + timedelta(seconds=number)), (number,))

            async def is_recorded(number: int = number) -> bool:
                return bool(await home.hand.fetchval("SELECT sum(count) FROM pgrole.history") == number + 1)

            assert await reached(is_recorded, DEADLINE)
    rows = await home.hand.fetch("SELECT login, count, proof FROM pgrole.history ORDER BY login")
    assert [tuple(row) for row in rows] == [("alice", 3, "Transaction"), ("bob", 2, "Transaction")]


async def test_a_reported_drift_is_recorded_once_until_it_disappears(home: HistoryHome) -> None:
    reported = replace(DRIFT, corrected=False, oid=0)
    async with home.running():
        for _ in range(3):
            home.attributor.note(KEY, reported)
            await anyio.sleep(0.05)
        await home.wait_rows(lambda rows: rows == [("app", ["login"], 1, False)])
        home.attributor.note_unreported(KEY)
        home.attributor.note(KEY, replace(reported, values={}))
        await home.wait_rows(lambda rows: len(rows) == 2)


async def test_another_reported_drift_of_the_same_fields_is_recorded_with_its_own_author(home: HistoryHome) -> None:
    name = f"r{secrets.token_hex(4)}"
    drifts = [
        replace(DRIFT, role_name=role, corrected=False, oid=0, fields=("memberOf",), values={"memberOf": values})
        for role, values in (
            (name, {"declared": "", "observed": "dba"}),
            ("unknown", {"declared": "", "observed": "dba, payroll"}),
        )
    ]
    await home.hand.execute(f"CREATE ROLE {name}")

    async def is_found() -> bool:
        return home.attributor.find_cause(KEY) is not None

    async with home.running():
        assert home.attributor.note(KEY, drifts[0], observed_at=NOW) is drifts[0]
        assert await reached(is_found, DEADLINE)
        declared = replace(drifts[0], values={"memberOf": {"declared": "x", "observed": "dba"}})
        assert home.attributor.note(KEY, declared, observed_at=NOW + timedelta(hours=1)) is drifts[0]
        second = home.attributor.note(KEY, drifts[1], observed_at=NOW + timedelta(hours=2))
        assert second == replace(drifts[1], at=NOW + timedelta(hours=2))
        assert not await is_found()
        assert home.attributor.note(KEY, drifts[1], observed_at=NOW + timedelta(hours=3)) is second
        await home.wait_rows(lambda rows: [row[0] for row in rows] == [name, "unknown"])
        assert not await is_found()
    await home.hand.execute(f"DROP ROLE {name}")


async def test_the_author_of_a_reported_drift_is_forgotten_when_it_disappears(home: HistoryHome) -> None:
    name = f"r{secrets.token_hex(4)}"
    reported = replace(DRIFT, role_name=name, corrected=False, oid=0)
    await home.hand.execute(f"CREATE ROLE {name}")

    async def is_found() -> bool:
        return home.attributor.find_cause(KEY) is not None

    async with home.running():
        home.attributor.note(KEY, reported)
        assert await reached(is_found, DEADLINE)
        home.attributor.note_unreported(KEY)
        assert not await is_found()
        home.attributor.note(KEY, reported)
        home.attributor.note_unreported(KEY)
        home.attributor.note(KEY, replace(reported, role_name="unknown"))
        await home.wait_rows(lambda rows: len(rows) == 2)
        assert not await is_found()
    await home.hand.execute(f"DROP ROLE {name}")


async def test_drifts_beyond_the_waiting_limit_are_recorded_without_an_author(home: HistoryHome) -> None:
    for number in range(MOST_WAITING + 20):
        home.attributor.note(Key("shop", str(number)), replace(DRIFT, role_name=f"app{number:03}", uid=str(number)))
    assert len(home.attributor._waiting) == MOST_WAITING
    async with home.running():
        await home.wait_rows(lambda rows: len(rows) == MOST_WAITING + 20)


async def test_a_drift_that_a_killed_process_did_not_record_is_recorded_from_the_claim(home: HistoryHome) -> None:
    owner = Owner("c1", "shop", "ns", "app", "uid-1")
    at = datetime.now(UTC).replace(second=10)
    claim = Claim("app", 20_000, 7, owner, applied="x", last_drift_at=at, last_drift_fields=("login",))
    home.attributor.note(KEY, replace(DRIFT, at=at))
    home.attributor.note_claim(claim)
    home.attributor.note_claim(replace(claim, role_name="other"))
    home.attributor.note_claim(replace(claim, role_name="old", last_drift_at=at - timedelta(days=2)))
    home.attributor.note_claim(replace(claim, role_name="never", last_drift_at=None))
    async with home.running():
        await home.wait_rows(lambda rows: [row[0] for row in rows] == ["app", "other"])
    again = Attributor(lambda: home.config, "c1", home.found.append)
    again.note_claim(claim)
    home.attributor = again
    async with home.running():
        again.note_claim(replace(claim, role_name="third"))
        await home.wait_rows(lambda rows: len(rows) == 3)
    assert [row[2] for row in await home.rows()] == [1, 1, 1]


async def test_a_failed_write_to_the_history_is_retried_and_does_not_end_the_attributor(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attributor_module, "_RETRY", Backoff(0.05, 0.1))
    await home.hand.execute("ALTER TABLE pgrole.drift_history RENAME TO away")
    with caplog.at_level(logging.WARNING):
        async with home.running():
            home.attributor.note(KEY, DRIFT)

            async def has_failed() -> bool:
                return "cannot record drifts of roles" in caplog.messages

            assert await reached(has_failed, DEADLINE)
            await home.hand.execute("ALTER TABLE pgrole.away RENAME TO drift_history")
            await home.wait_rows(lambda rows: rows == [("app", ["login"], 1, True)])
    assert [record.message for record in caplog.records].count("cannot record drifts of roles") == 1


async def test_a_drift_whose_author_cannot_be_asked_for_is_recorded_without(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributor_module, "_RETRY", Backoff(0.05, 0.1))

    async def fail(*_: Any) -> DriftAuthor:
        raise Transient(Reason.SERVER_NOT_READY, "the connection was lost")

    monkeypatch.setattr(RoleAttribution, "find_author", fail)
    async with home.running():
        home.attributor.note(KEY, DRIFT)
        await home.wait_rows(lambda rows: rows == [("app", ["login"], 1, True)])


async def test_a_drift_that_is_asked_about_when_the_session_ends_is_recorded_in_the_next(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = anyio.Event()

    async def hang(*_: Any) -> DriftAuthor:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    with monkeypatch.context() as hanging:
        hanging.setattr(RoleAttribution, "find_author", hang)
        hanging.setattr(attributor_module, "_DRIFT_SECONDS", 3600.0)
        async with home.running():
            home.attributor.note(KEY, DRIFT)
            with anyio.fail_after(DEADLINE):
                await asked.wait()
    async with home.running():
        await home.wait_rows(lambda rows: rows == [("app", ["login"], 1, True)])


async def test_drifts_of_a_former_server_are_not_recorded_on_the_next(home: HistoryHome) -> None:
    home.attributor.note(KEY, DRIFT)
    home.attributor.forget()
    home.attributor.note(KEY, replace(DRIFT, role_name="other"))
    async with home.running():
        await home.wait_rows(lambda rows: rows == [("other", ["login"], 1, True)])


async def test_an_unexpected_error_does_not_end_the_attributor(
    home: HistoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributor_module, "_RETRY", Backoff(0.05, 0.1))
    failures = iter([RuntimeError("boom")])

    async def fail_once(*arguments: Any) -> None:
        for error in failures:
            raise error
        await record_at_home(*arguments)

    monkeypatch.setattr(attributor_module, "record_at_home", fail_once)
    async with home.running():
        home.attributor.note(KEY, DRIFT)
        await home.wait_rows(lambda rows: len(rows) == 1)


async def test_without_a_schema_nothing_is_recorded_but_the_author_is_found(
    home: HistoryHome, postgres_server: PostgresServer
) -> None:
    role = f"r{secrets.token_hex(4)}"
    async with connect(Endpoint(postgres_server.dsn()), "work") as alice:
        await alice.execute("SET application_name = 'psql'")
        await alice.execute(f"CREATE ROLE {role}")
        async with home.running(keeps=False):
            home.attributor.note(KEY, replace(DRIFT, role_name=role))

            async def is_found() -> bool:
                return home.attributor.find_cause(KEY) is not None

            assert await reached(is_found, DEADLINE)
        await alice.execute(f"DROP ROLE {role}")
    assert home.found == [KEY]
    assert await home.rows() == []
