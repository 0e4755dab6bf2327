"""Connecting: several hosts, servers that hang, refuse or are read-only, and passwords printed by a command."""

import asyncio
import secrets
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import anyio
import asyncpg
import pytest

from pgrole_controller.core.errors import PgRoleError, Refused, Transient
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer
from pgrole_controller.local.process import alive, reached
from pgrole_controller.postgres import token as token_module
from pgrole_controller.postgres.connection import CONNECT_SECONDS, Connection, Endpoint, PasswordFactory, connect
from pgrole_controller.postgres.database_connection import connect_to
from pgrole_controller.postgres.token import TokenCommand
from tests.servers import Servers

#: Tolerance beyond a connection's timeout, in seconds, on a busy machine.
SLACK = 15.0
SECRET = "s3cr3t-word"

ConnectionPhase = Literal["nothing", "tls", "login", "ready", "question"]
_SETTINGS = {"server_version": "18.4", "client_encoding": "UTF8", "standard_conforming_strings": "on"}


@dataclass(slots=True)
class Mute:
    """A peer that stops answering in one phase, and knows who is connected."""

    phase: ConnectionPhase
    port: int = 0
    seen: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        self.open.add(writer)
        try:
            if self.phase != "nothing":
                await self._answer(reader, writer)
            while await reader.read(1 << 16):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.phase == "tls":
            await reader.readexactly(8)
            writer.write(b"S")
            return
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(length - 4)
        if self.phase == "login":
            return
        writer.write(_message(b"R", struct.pack("!i", 0)))
        for name, value in _SETTINGS.items():
            writer.write(_message(b"S", f"{name}\0{value}\0".encode()))
        if self.phase == "question":
            writer.write(_message(b"K", struct.pack("!ii", 1, 1)) + _message(b"Z", b"I"))


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


@asynccontextmanager
async def mute(phase: ConnectionPhase, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Mute]:
    """Asserts at the end that no client is connected."""
    peer = Mute(phase)
    server = await asyncio.start_server(peer.serve, host, port)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer

        async def is_left() -> bool:
            return not peer.open

        assert await reached(is_left, SLACK, every=0.01), "a connection was left open"
    finally:
        server.close()
        for writer in peer.open:
            writer.transport.abort()
        await server.wait_closed()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Verifies that no task is left."""
    before = asyncio.all_tasks()
    yield

    async def is_gone() -> bool:
        return asyncio.all_tasks() <= before

    assert await reached(is_gone, SLACK, every=0.01), asyncio.all_tasks() - before


def endpoint_of(
    server: PostgresServer,
    hosts: list[str] | None = None,
    password: str | PasswordFactory | None = None,
    **other: object,
) -> Endpoint:
    given = {"database": "postgres", "user": SUPERUSER, "sslmode": "disable", "port": server.port, **other}
    return Endpoint.of(hosts or [server.host], password=password or server.password, **given)  # type: ignore[arg-type]


async def refusal(endpoint: Endpoint) -> PgRoleError:
    with anyio.fail_after(CONNECT_SECONDS + SLACK), pytest.raises(PgRoleError) as caught:
        async with nothing_left(), connect(endpoint, "test"):
            pass
    return caught.value


async def host_of(connection: Connection) -> str:
    return str(await connection.fetchval("SELECT host(inet_server_addr())"))


def test_no_secret_is_in_a_representation_of_an_endpoint() -> None:
    for endpoint in (
        Endpoint(f"postgresql://user:{SECRET}@host/db"),
        Endpoint.of(["host"], 5432, "db", "user", SECRET, "verify-full"),
        Endpoint.of(["host"], 5432, "db", "user", SECRET, "verify-full").at("other"),
    ):
        assert SECRET not in f"{endpoint!r} {endpoint}"


def test_endpoints_are_equal_when_no_new_connection_is_needed() -> None:
    def make(**changed: object) -> Endpoint:
        given = {"hosts": ["a", "b"], "port": 5432, "database": "db", "user": "u", "password": "p"}
        return Endpoint.of(**{**given, "sslmode": "verify-full", "ca": "PEM", **changed})  # type: ignore[arg-type]

    assert make() == make(hosts=("a", "b"))
    assert hash(make()) == hash(make())
    assert make(password=TokenCommand(("aws", "x"))) == make(password=TokenCommand(("aws", "x")))
    for changed in (
        {"hosts": ["b", "a"]},
        {"port": 1},
        {"database": "other"},
        {"user": "v"},
        {"password": "q"},
        {"password": TokenCommand(("aws",))},
        {"sslmode": "verify-ca"},
        {"ca": None},
    ):
        assert make() != make(**changed), changed
    assert make().at("other") == make(database="other")


async def test_connecting_to_a_server_that_stops_answering_in_any_phase_fails_in_time() -> None:
    said: dict[tuple[ConnectionPhase, str], str] = {}

    async def try_it(phase: ConnectionPhase, how: str) -> None:
        async with mute(phase) as peer:
            if how == "dsn":
                endpoint = Endpoint(f"postgresql://user:{SECRET}@127.0.0.1:{peer.port}/db?sslmode=disable")
            else:
                endpoint = Endpoint.of(["127.0.0.1"], peer.port, "postgres", "user", SECRET, how)  # type: ignore[arg-type]
            with anyio.fail_after(CONNECT_SECONDS + SLACK), pytest.raises(Transient) as caught:
                async with connect(endpoint, "test"):
                    pass
            said[phase, how] = caught.value.message.replace(f"127.0.0.1:{peer.port}: ", "")
            assert peer.seen >= 1

    plain: tuple[ConnectionPhase, ...] = ("nothing", "login", "ready", "question")
    asked: list[tuple[ConnectionPhase, str]] = [(phase, how) for phase in plain for how in ("disable", "dsn")]
    asked += [("nothing", "require"), ("tls", "require")]
    async with nothing_left(), anyio.create_task_group() as tasks:
        for phase, how in asked:
            tasks.start_soon(try_it, phase, how)
    assert said == dict.fromkeys(asked, "the connection to PostgreSQL failed: no answer in time")


async def test_connecting_to_a_frozen_server_fails_in_time(own_postgres: PostgresServer) -> None:
    own_postgres.pause()
    try:
        assert "no answer in time" in (await refusal(endpoint_of(own_postgres))).message
    finally:
        own_postgres.resume()
    async with connect(endpoint_of(own_postgres), "test") as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_cancelled_connection_attempt_is_closed_at_once() -> None:
    async with mute("question") as peer, nothing_left():
        endpoint = Endpoint.of(["127.0.0.1"], peer.port, "postgres", "user", SECRET, "disable")
        async with anyio.create_task_group() as tasks:

            async def try_it() -> None:
                async with connect(endpoint, "test"):
                    pass

            async def is_seen() -> bool:
                return bool(peer.open)

            tasks.start_soon(try_it)
            assert await reached(is_seen, SLACK, every=0.01)
            tasks.cancel_scope.cancel()


async def test_a_host_that_is_down_hangs_or_is_unknown_leaves_time_for_the_next(
    servers: Servers,
    postgres_server: PostgresServer,
) -> None:
    on_this_machine(servers)
    async with mute("nothing", "127.0.0.2", postgres_server.port) as hanging, nothing_left():
        for hosts in (["127.0.0.3", "127.0.0.1"], ["host.invalid", "127.0.0.1"], ["a..b", "127.0.0.1"]):
            async with connect(endpoint_of(postgres_server, hosts), "test") as connection:
                assert await host_of(connection) == "127.0.0.1"
        with anyio.fail_after(CONNECT_SECONDS + SLACK):
            async with connect(endpoint_of(postgres_server, ["127.0.0.2"] * 15 + ["127.0.0.1"]), "test") as connection:
                assert await host_of(connection) == "127.0.0.1"

        async def were_all_tried() -> bool:
            return hanging.seen == 15

        assert await reached(were_all_tried, SLACK), hanging.seen


async def test_the_error_states_the_problem_of_each_host(servers: Servers, postgres_server: PostgresServer) -> None:
    on_this_machine(servers)
    port = postgres_server.port
    async with mute("nothing", "127.0.0.2", port):
        error = await refusal(
            endpoint_of(postgres_server, ["127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"], password=SECRET)
        )
    assert isinstance(error, Transient)
    assert error.message.startswith("no host accepts the connection: ")
    assert f"127.0.0.1:{port}: PostgreSQL rejects the credentials" in error.message
    assert f"127.0.0.2:{port}: the connection to PostgreSQL failed: no answer in time" in error.message
    assert f"127.0.0.3:{port}: the connection to PostgreSQL failed: " in error.message
    assert f"[::1]:{port}: the connection to PostgreSQL failed: " in error.message
    assert SECRET not in error.message


@asynccontextmanager
async def standby(servers: Servers, host: str, port: int) -> AsyncIterator[PostgresServer]:
    """A server in recovery that can be read from."""
    async with servers.run({"listen_addresses": host, "port": str(port)}) as server:
        await server.stop()
        (server.data / "standby.signal").touch()
        await server.process.start()

        async def can_be_read() -> bool:
            try:
                connection = await asyncpg.connect(
                    host=host, port=port, user=SUPERUSER, password=server.password, database="postgres"
                )
            except (OSError, asyncpg.CannotConnectNowError):
                return False
            await connection.close()
            return True

        assert await reached(can_be_read, 60)
        yield server


async def test_a_standby_is_skipped_and_named_if_there_is_no_other_host(
    servers: Servers, postgres_server: PostgresServer
) -> None:
    on_this_machine(servers)
    port = postgres_server.port
    async with standby(servers, "127.0.0.2", port) as copy, nothing_left():
        for hosts in (["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
            made = endpoint_of(postgres_server, hosts, password=_by_host({"127.0.0.2": copy.password}, postgres_server))
            async with connect(made, "test") as connection:
                assert await host_of(connection) == "127.0.0.1"
        error = await refusal(endpoint_of(copy, ["127.0.0.2"], port=port))
        assert error.message.startswith(f"127.0.0.2:{port}: the server is a read-only standby (pg_is_in_recovery)")
        dsn = f"postgresql://{SUPERUSER}:{copy.password}@127.0.0.2:{port}/postgres?sslmode=disable"
        assert "the server is a read-only standby" in (await refusal(Endpoint(dsn))).message


def _by_host(passwords: dict[str, str], otherwise: PostgresServer) -> PasswordFactory:
    async def make(host: str, _port: int, _user: str) -> str:
        return passwords.get(host, otherwise.password)

    return make


def on_this_machine(servers: Servers) -> None:
    if servers.docker:
        pytest.skip("this test runs PostgreSQL at an additional address on this machine")


async def test_the_controller_can_write_to_a_server_that_is_read_only_by_default(own_postgres: PostgresServer) -> None:
    async with connect(endpoint_of(own_postgres), "test") as connection:
        await connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await connection.execute(f"ALTER ROLE {SUPERUSER} SET default_transaction_read_only = on")
        await connection.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    await own_postgres.restart()
    plain = await asyncpg.connect(own_postgres.dsn())
    assert await plain.fetchval("SHOW transaction_read_only") == "on"
    await plain.close()
    for endpoint in (endpoint_of(own_postgres), Endpoint(own_postgres.dsn())):
        async with connect(endpoint, "test") as connection:
            await connection.execute("CREATE ROLE written")
            await connection.execute("DROP ROLE written")


async def test_the_error_reports_that_no_connection_is_left(postgres_server: PostgresServer) -> None:
    name = f"test_{secrets.token_hex(4)}"
    async with connect(endpoint_of(postgres_server), "test") as admin, nothing_left():
        await admin.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 1 PASSWORD '{SECRET}'")
        endpoint = endpoint_of(postgres_server, user=name, password=SECRET)
        async with connect(endpoint, "test"):
            assert "no connection left for the controller" in (await refusal(endpoint)).message
        await admin.execute(f"DROP ROLE {name}")


async def test_the_error_names_the_grant_that_is_missing_to_connect(postgres_server: PostgresServer) -> None:
    name = f"test_{secrets.token_hex(4)}"
    async with connect(endpoint_of(postgres_server), "test") as admin:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
        await admin.execute(f"CREATE DATABASE {name}")
        await admin.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
        endpoint = endpoint_of(postgres_server, user=name, password=SECRET, database=name)
        message = (await refusal(endpoint)).message
        await admin.execute(f"DROP DATABASE {name}")
        await admin.execute(f"DROP ROLE {name}")
    assert f'permission denied for database "{name}"' in message
    assert "GRANT CONNECT ON DATABASE" in message


@pytest.mark.parametrize("in_dsn", [True, False])
async def test_the_error_of_another_database_has_the_grant_as_it_must_be_typed(
    postgres_server: PostgresServer, in_dsn: bool
) -> None:
    name = f'the "{secrets.token_hex(4)}'
    quoted = '"' + name.replace('"', '""') + '"'
    async with connect(endpoint_of(postgres_server), "test") as admin:
        await admin.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD '{SECRET}'")
        await admin.execute(f"CREATE DATABASE {quoted}")
        await admin.execute(f"REVOKE CONNECT ON DATABASE {quoted} FROM PUBLIC")
        endpoint = endpoint_of(postgres_server, user=name, password=SECRET)
        if in_dsn:
            login = f"{quote(name)}:{quote(SECRET)}@{postgres_server.host}:{postgres_server.port}"
            endpoint = Endpoint(f"postgresql://{login}/postgres")
        with pytest.raises(PgRoleError) as refused:
            async with connect_to(endpoint, name, "test"):
                pass
        message = refused.value.message
        await admin.execute(message.partition(": ")[2])
        async with connect_to(endpoint, name, "test"):
            pass
        await admin.execute(f"DROP DATABASE {quoted} WITH (FORCE)")
        await admin.execute(f"DROP ROLE {quoted}")
    assert message == f'role "{name}" may not connect to database "{name}": ' + (
        f"GRANT CONNECT ON DATABASE {quoted} TO {quoted}"
    )


async def test_a_statement_stays_prepared_however_long_the_session_is_idle(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT prepare_time FROM pg_prepared_statements WHERE statement LIKE '%prepare_time%'"
    loop, later = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + later)
    async with connect(Endpoint(postgres_server.dsn()), "test") as connection:
        prepared = await connection.fetchval(query)
        later = 24 * 3600.0
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # timers that were due have run
        assert await connection.fetchval(query) == prepared
        later = 0.0


async def test_a_refused_login_is_reported_without_secrets(postgres_server: PostgresServer) -> None:
    for endpoint, words in (
        (endpoint_of(postgres_server, password=SECRET), "rejects the credentials"),
        (endpoint_of(postgres_server, user="nobody", password=SECRET), "rejects the credentials"),
        (endpoint_of(postgres_server, database="missing"), "the home database is missing"),
        (Endpoint(postgres_server.dsn(password=SECRET)), "rejects the credentials"),
    ):
        error = await refusal(endpoint)
        assert words in error.message
        assert SECRET not in error.message


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(f"postgresql://user:{SECRET}/x@host/db"),
        Endpoint(f"postgresql://user:x@host:{SECRET}/db"),
        Endpoint(f"postgresql://user:x@host/db?{SECRET}"),
        Endpoint.of(["a..b"], 5432, "db", "user", SECRET, "disable"),
        Endpoint.of(["x" * 64], 5432, "db", "user", SECRET, "disable"),
    ],
)
async def test_an_unusable_dsn_or_host_is_refused_without_repeating_it(endpoint: Endpoint) -> None:
    error = await refusal(endpoint)
    assert isinstance(error, Refused)
    assert "is not usable" in error.message
    assert SECRET not in repr(error)
    assert error.__cause__ is None


@pytest.mark.parametrize("field_", ["user", "password", "database"])
@pytest.mark.parametrize("odd", ["x\0y", "x\udc80"])
async def test_a_value_that_no_packet_can_contain_is_refused(
    postgres_server: PostgresServer, field_: str, odd: str
) -> None:
    with anyio.fail_after(CONNECT_SECONDS + SLACK), pytest.raises(PgRoleError):
        async with connect(endpoint_of(postgres_server, **{field_: odd}), "test"):  # type: ignore[arg-type]
            pass


async def test_libpqs_environment_variables_are_ignored(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGHOST": "host.invalid",
        "PGPORT": "1",
        "PGUSER": "nobody",
        "PGPASSWORD": "wrong",
        "PGDATABASE": "missing",
        "PGSSLMODE": "verify-full",
        "PGSSLNEGOTIATION": "direct",
        "PGTARGETSESSIONATTRS": "standby",
    }.items():
        monkeypatch.setenv(name, value)
    async with connect(endpoint_of(postgres_server), "test") as connection:
        assert await connection.fetchval("SELECT current_database()") == "postgres"


def script(path: Path, text: str) -> TokenCommand:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return TokenCommand((str(path), "an argument"))


async def test_the_token_command_runs_for_every_connection(postgres_server: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"\n  {postgres_server.password}\n\n", encoding="utf-8")
    command = script(
        tmp_path / "mint",
        f'echo "$PGHOST $PGPORT $PGUSER $1" >> {tmp_path}/calls; echo a note >&2; cat {tmp_path}/token',
    )
    endpoint = endpoint_of(postgres_server, password=command)
    async with nothing_left():
        for _ in range(2):
            async with connect(endpoint, "test") as connection:
                assert await connection.fetchval("SELECT 1") == 1
    call = f"{postgres_server.host} {postgres_server.port} {SUPERUSER} an argument"
    assert (tmp_path / "calls").read_text(encoding="utf-8").splitlines() == [call, call]
    (tmp_path / "token").write_text(SECRET, encoding="utf-8")
    assert "rejects the credentials" in (await refusal(endpoint)).message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"echo {SECRET}; echo >&2; echo 'no credentials' >&2; echo more >&2; exit 3", "(exit code 3): no credentials"),
        (f"echo {SECRET}; exit 1", "(exit code 1): no error output"),
        ("kill -9 $$", "(exit code -9)"),
        ("exit 0", "printed nothing"),
        ("echo ' '", "printed nothing"),
        (f"echo {SECRET}; echo {SECRET}", "more than one line"),
        ("head -c 1000000 /dev/zero | tr '\\0' x", "more than one line of at most 65536 bytes"),
        (f"printf '{SECRET}\\377'", "printed something that is not text"),
    ],
)
async def test_a_failed_token_command_is_reported_without_its_standard_output(
    tmp_path: Path, text: str, words: str
) -> None:
    error = await refusal(Endpoint.of(["127.0.0.1"], 1, "db", "user", script(tmp_path / "mint", text), "disable"))
    assert isinstance(error, Transient)
    assert 'the token command "mint" ' in error.message
    assert words in error.message
    assert SECRET not in error.message
    assert "more" not in error.message or "more than" in error.message


@pytest.mark.parametrize("argv", [("/nowhere/mint",), ("/",), ("mint\0",), (), ("",)])
async def test_a_token_command_that_cannot_be_run_is_reported(argv: tuple[str, ...]) -> None:
    error = await refusal(Endpoint.of(["127.0.0.1"], 1, "db", "user", TokenCommand(argv), "disable"))
    assert ("cannot be run: " if argv else "names no program") in error.message


async def test_a_hanging_token_command_is_killed_with_all_its_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "TOKEN_SECONDS", 4.0)
    for name, ending in (("waits", "wait"), ("leaves", "exit 0")):
        pid_file = tmp_path / f"{name}.pid"
        command = script(tmp_path / name, f"sleep 300 & echo $! > {pid_file}; {ending}")
        error = await refusal(Endpoint.of(["127.0.0.1"], 1, "db", "user", command, "disable"))
        assert f'the token command "{name}" did not end within 4 s' in error.message
        pid = int(pid_file.read_text(encoding="utf-8"))

        async def is_gone(pid: int = pid) -> bool:
            return not alive(pid)

        assert await reached(is_gone, SLACK)


async def test_a_token_command_does_not_see_the_controllers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGROLE_DSN", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    made = await script(tmp_path / "mint", 'echo "[$PGROLE_DSN$AWS_REGION]"')("host", 1, "user")
    assert made == "[eu-north-1]"
