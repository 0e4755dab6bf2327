"""Causes of a missing session, with real servers, sockets and host names."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.abc
import asyncpg
import pytest

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.reconnect import Cause
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.local.workspace import free_port
from pgrole_controller.postgres import session as session_module
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.errors import cause_of, unwrap_group
from pgrole_controller.postgres.fence import Candidate
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.servers import Servers

SECONDS = 30.0


async def cause_at(endpoint: Endpoint) -> Cause:
    with pytest.raises(PgRoleError) as caught:
        async with connect(endpoint, "work"):
            pass
    return cause_of(caught.value)


def at(*hosts: str, port: int, user: str = "postgres", password: str = "") -> Endpoint:
    return Endpoint.of(hosts, port, "postgres", user, password, "disable")


@asynccontextmanager
async def closing() -> AsyncIterator[int]:
    """The port of a proxy whose server is down: it accepts each connection and closes it."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_without_a_listener_refuses(host: str) -> None:
    port = free_port()
    assert await cause_at(at(host, port=port)) is Cause.REFUSED
    assert await cause_at(Endpoint(f"postgresql://u:p@{host}:{port}/postgres")) is Cause.REFUSED


async def test_several_hosts_without_a_listener_refuse() -> None:
    assert await cause_at(at("127.0.0.1", "localhost", port=free_port())) is Cause.REFUSED


async def test_a_missing_socket_refuses(tmp_path: Path) -> None:
    assert await cause_at(Endpoint(f"postgresql:///postgres?host={tmp_path}&user=u")) is Cause.REFUSED


async def test_an_unresolvable_host_name_backs_off() -> None:
    assert await cause_at(at("nowhere.invalid", port=5432)) is Cause.OTHER


async def test_the_host_that_requires_the_most_back_off_decides_the_cause() -> None:
    assert await cause_at(at("127.0.0.1", "nowhere.invalid", port=free_port())) is Cause.OTHER


async def test_a_connection_that_is_closed_at_once_is_lost() -> None:
    async with closing() as port:
        assert await cause_at(at("127.0.0.1", port=port)) is Cause.LOST


async def test_rejected_credentials_back_off(server: PostgresServer) -> None:
    endpoint = at("127.0.0.1", port=server.port, password="wrong")
    assert await cause_at(endpoint) is Cause.OTHER
    assert await cause_at(replace(endpoint, hosts=("127.0.0.1", "localhost"))) is Cause.OTHER


async def test_a_server_that_accepts_no_login_yet_is_starting_and_one_in_recovery_is_lost(servers: Servers) -> None:
    async with servers.run() as server:
        await server.stop()
        (server.data / "standby.signal").touch()
        configuration = server.data / "postgresql.auto.conf"
        configuration.write_text("hot_standby = off\n", encoding="utf-8")
        await server.process.start()
        endpoint = Endpoint(server.dsn())

        async def is_starting() -> bool:
            return await cause_at(endpoint) is Cause.STARTING

        assert await reached(is_starting, SECONDS)
        await server.stop()
        configuration.write_text("hot_standby = on\n", encoding="utf-8")
        await server.process.start()

        async def is_lost() -> bool:
            return await cause_at(endpoint) is Cause.LOST

        assert await reached(is_lost, SECONDS)


def test_unforeseen_errors_back_off_and_another_leader_counts_as_overtaken() -> None:
    assert cause_of(Transient(Reason.SERVER_NOT_READY, "a Secret is missing")) is Cause.OTHER
    assert cause_of(Transient(Reason.PROGRESSING, "another process leads")) is Cause.OVERTAKEN
    for error in (TimeoutError(), PermissionError(13, "no"), FileNotFoundError(2, "no", "/token"), OSError("what")):
        transient = Transient(Reason.SERVER_NOT_READY, "failed")
        transient.__cause__ = error
        assert cause_of(transient) is Cause.OTHER
    mixed = Transient(Reason.SERVER_NOT_READY, "failed")
    mixed.__cause__ = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 113] No route to host")
    assert cause_of(mixed) is Cause.OTHER
    mixed.__cause__ = asyncpg.TooManyConnectionsError("sorry, too many clients already")
    assert cause_of(mixed) is Cause.OTHER


def test_the_first_error_of_a_group_keeps_its_own_cause() -> None:
    error, another = (Transient(Reason.SERVER_NOT_READY, text) for text in ("no answer in time", "ended"))
    error.__cause__, another.__cause__ = TimeoutError(), ConnectionResetError()
    with pytest.raises(Transient) as caught, unwrap_group():
        raise ExceptionGroup("", [ExceptionGroup("", [error]), another])
    assert caught.value is error
    assert cause_of(error) is Cause.OTHER
    for others in (BaseExceptionGroup("", [error, KeyboardInterrupt()]), ExceptionGroup("", [TimeoutError()])):
        with pytest.raises(BaseExceptionGroup) as raised, unwrap_group():
            raise others
        assert raised.value is others


async def end_session(
    server: PostgresServer, work: Callable[[Session], Awaitable[None]], candidate: Candidate | None = None
) -> Cause:
    """Why the session ended while `work` ran in it."""
    with pytest.raises(PgRoleError) as caught, anyio.fail_after(SECONDS):
        await run_session(
            Endpoint(server.dsn()),
            "cluster",
            may_install=True,
            callbacks=ChangeCallbacks(),
            work=work,
            candidate=candidate,
        )
    return cause_of(caught.value)


async def terminate(server: PostgresServer, purpose: str) -> None:
    connection = await asyncpg.connect(server.dsn())
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1"
    try:
        await connection.execute(query, f"pgrole-controller {purpose}")
    finally:  # the session may end, and cancel this, before the answer is here
        connection.terminate()


@pytest.mark.parametrize("purpose", ["work", "listen", "watch", "%"])
async def test_a_session_whose_backend_is_terminated_is_lost(server: PostgresServer, purpose: str) -> None:
    async def work(session: Session) -> None:
        await terminate(server, purpose)
        while True:
            await session.read_database_name()
            await anyio.sleep(0.01)

    assert await end_session(server, work) is Cause.LOST


async def test_a_standbys_session_whose_backend_is_terminated_is_lost(server: PostgresServer) -> None:
    async def stand_by() -> None:
        await terminate(server, "work")
        await anyio.sleep_forever()

    async def work(_: Session) -> None:
        raise AssertionError("it never leads")

    candidate = Candidate("here", "me", lambda: False, stand_by, stand_by)
    assert await end_session(server, work, candidate) is Cause.LOST


async def test_a_server_that_hangs_during_a_session_backs_off(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "BEAT_PERIOD", 0.1)
    monkeypatch.setattr(session_module, "_SUSPENDED_SECONDS", 0.2)

    async def work(_: Session) -> None:
        server.pause()
        await anyio.sleep_forever()

    try:
        assert await end_session(server, work) is Cause.OTHER
    finally:
        server.resume()


async def test_a_session_that_the_controller_refuses_backs_off(server: PostgresServer) -> None:
    async def conflict(_: Session) -> None:
        raise Refused(Reason.CONFLICT, "an older PgServer declares the same server")

    async def overtaken(_: Session) -> None:
        raise Transient(Reason.PROGRESSING, "another process leads")

    assert await end_session(server, conflict) is Cause.OTHER
    assert await end_session(server, overtaken) is Cause.OVERTAKEN


async def test_a_missing_home_database_backs_off(server: PostgresServer) -> None:
    assert await cause_at(Endpoint(server.dsn(database="missing"))) is Cause.OTHER
