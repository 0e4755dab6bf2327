"""A session of a process on standby: ready, but changing nothing until it leads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import anyio
import asyncpg
import pytest

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import session as session_module
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.fence import Candidate
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks

DEADLINE = 60.0
OURS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'pgrole-controller %'"
)


class StandbyServer:
    """One attempt at a session, by a process that leads once `lead` is set."""

    def __init__(self, dsn: str) -> None:
        self.endpoint = Endpoint(dsn)
        self.lead = anyio.Event()
        self.standing = 0
        self.error: PgRoleError | None = None
        self.session: Session | None = None
        self.ended = anyio.Event()

    async def run(self) -> None:
        try:
            await run_session(
                self.endpoint,
                "cluster",
                may_install=True,
                callbacks=ChangeCallbacks(),
                work=self._work,
                candidate=Candidate("here", "me", self.lead.is_set, self._stand_by, self._confirm),
            )
        except PgRoleError as error:
            self.error = error
        self.ended.set()

    async def _stand_by(self) -> None:
        self.standing += 1
        await self.lead.wait()

    async def _confirm(self) -> None:
        assert self.lead.is_set()

    async def _work(self, session: Session) -> None:
        self.session = session


class Leader(StandbyServer):
    """Its session continues until it is cancelled."""

    async def _work(self, session: Session) -> None:
        await super()._work(session)
        await anyio.sleep_forever()


class BriefLeader(StandbyServer):
    """At first it led, but does not any more when it would begin."""

    async def _stand_by(self) -> None:
        self.standing += 1
        if self.standing > 1:
            await self.lead.wait()


@asynccontextmanager
async def administrator(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def standing(dsn: str, kind: type[StandbyServer] = StandbyServer) -> AsyncIterator[StandbyServer]:
    standby = kind(dsn)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standby.run)
        yield standby
        tasks.cancel_scope.cancel()


async def count(connection: Connection, expected: int) -> None:
    async def is_so() -> bool:
        return bool(await connection.fetchval(OURS) == expected)

    assert await reached(is_so, DEADLINE), await connection.fetchval(OURS)


async def begin(standby: StandbyServer, times: int = 1) -> None:
    async def is_so() -> bool:
        return standby.standing >= times

    assert await reached(is_so, DEADLINE)


async def test_a_standby_leaves_the_schema_to_the_leader_and_then_prepares_its_session(database: str) -> None:
    async with administrator(database) as connection, standing(database) as standby:
        await begin(standby)
        await count(connection, 1)
        assert await connection.fetchval("SELECT to_regnamespace('pgrole')") is None
        async with connect(Endpoint(database), "leader") as leader:
            await install(leader)
        await begin(standby, 2)
        await count(connection, 3)
        assert await connection.fetchval("SELECT count(*) FROM pgrole.leader") == 0
        standby.lead.set()
        with anyio.fail_after(DEADLINE):
            await standby.ended.wait()
        assert standby.error is None
        assert standby.session is not None
        assert standby.session.fence is not None
        assert await connection.fetchval("SELECT number FROM pgrole.leader") == standby.session.fence.number


async def test_a_standby_that_led_for_a_moment_only_keeps_its_connections(database: str) -> None:
    async with administrator(database) as connection:
        async with connect(Endpoint(database), "leader") as leader:
            await install(leader)
        async with standing(database, BriefLeader) as standby:
            await begin(standby, 2)
            await count(connection, 3)
            standby.lead.set()
            with anyio.fail_after(DEADLINE):
                await standby.ended.wait()
            assert standby.error is None
            assert standby.session is not None


async def test_a_standby_installs_a_missing_schema_when_it_leads(database: str) -> None:
    async with administrator(database) as connection, standing(database) as standby:
        await begin(standby)
        standby.lead.set()
        with anyio.fail_after(DEADLINE):
            await standby.ended.wait()
        assert standby.error is None
        assert await connection.fetchval("SELECT count(*) FROM pgrole.leader WHERE number > 0") == 1


@pytest.mark.parametrize("purpose", ["work", "listen", "watch"])
async def test_a_standby_that_loses_any_connection_fails_and_does_not_lead(database: str, purpose: str) -> None:
    async with administrator(database) as connection:
        async with connect(Endpoint(database), "leader") as leader:
            await install(leader)
        async with standing(database) as standby:
            await begin(standby)
            ended = await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 "
                "AND datname = current_database()",
                f"pgrole-controller {purpose}",
            )
            assert len(ended) == 1
            with anyio.fail_after(DEADLINE):
                await standby.ended.wait()
            assert standby.error is not None
            assert standby.session is None


async def test_a_standby_checks_its_access_again_when_it_leads(database: str) -> None:
    async with administrator(database) as connection:
        async with connect(Endpoint(database), "leader") as leader:
            await install(leader)
        async with standing(database) as standby:
            await begin(standby)
            name = await connection.fetchval("SELECT current_database()")
            await connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO PUBLIC')
            standby.lead.set()
            with anyio.fail_after(DEADLINE):
                await standby.ended.wait()
            assert standby.error is not None
            assert "changed while another process led" in standby.error.message
            assert await connection.fetchval("SELECT count(*) FROM pgrole.leader") == 0


async def test_the_leader_writes_heartbeats_repeatedly(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "BEAT_PERIOD", 0.05)
    heartbeats: set[datetime] = set()
    async with administrator(database) as connection, standing(database, Leader) as leader:

        async def are_three() -> bool:
            if leader.session is not None:
                heartbeats.add(await connection.fetchval("SELECT heartbeat FROM pgrole.leader"))
            return len(heartbeats) >= 3

        leader.lead.set()
        assert await reached(are_three, DEADLINE)
