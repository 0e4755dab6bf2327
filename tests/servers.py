"""Selects the PostgreSQL for the tests: any supported version, on this machine or in a container."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.to_thread
import pytest

from pgrole_controller.local.postgres import DEFAULT_VERSION, SUPERUSER, PostgresServer, Stop, postgres
from pgrole_controller.postgres.connection import Connection
from tests.initialised import UNSAFE, Original, copied

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

VERSIONS = (14, 15, 16, 17, 18)
DEFAULT = str(DEFAULT_VERSION)
_PORT = 5432
_OF_THIS_MACHINE = frozenset({"process", "programs", "folder", "data", "log"})
#: As on this machine: the tests rely on the sort order of locale C.
_INITDB_ARGS = "--auth=scram-sha-256 --encoding=UTF8 --locale=C"


@dataclass(frozen=True, slots=True)
class Servers:
    """Starts servers as requested by --postgres: `16` on this machine, `docker:16` in containers."""

    version: int
    docker: bool = False
    original: Original | None = None

    def run(self, settings: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[PostgresServer]:
        """Runs a server for the lifetime of the context; `settings` are those of postgresql.conf."""
        if self.docker:
            return container(self.version, settings or {})
        if self.original is not None:
            return copied(self.original, settings or {})
        return postgres(version=self.version, settings=settings)


class ContainerServer(PostgresServer):
    """A PostgreSQL in a container. Skips tests that would break it or read its files."""

    def __init__(self, host: str, port: int, password: str) -> None:
        self.host, self.port, self.password = host, port, password

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THIS_MACHINE:
            _skip("reads the files or the processes of PostgreSQL")
        raise AttributeError(name)

    async def start(self) -> None:
        _skip("starts PostgreSQL itself")

    async def stop(self, mode: Stop = Stop.FAST) -> None:  # noqa: ARG002 -- as of every server
        _skip("stops PostgreSQL")

    async def kill(self) -> None:
        _skip("kills PostgreSQL")

    def pause(self) -> None:
        _skip("freezes PostgreSQL")

    def resume(self) -> None:
        _skip("freezes PostgreSQL")


def read_choice(text: str) -> Servers:
    """Parses the option --postgres. Raises pytest.UsageError."""
    place, _, version = text.rpartition(":")
    if place not in ("", "docker") or version not in map(str, VERSIONS):
        known = ", ".join(map(str, VERSIONS))
        raise pytest.UsageError(f"--postgres {text}: a version ({known}) or docker:VERSION is expected")
    return Servers(int(version), docker=place == "docker")


async def create_database(connection: Connection, name: str, options: str = "") -> None:
    """Creates a database for a fifth less CPU than by the default strategy. `options` follow WITH."""
    cheaply = "STRATEGY file_copy" if connection.get_server_version().major >= 15 else ""  # the only one before 15
    await connection.execute(f'CREATE DATABASE "{name}" WITH {cheaply} {options}')


def missing_docker() -> str | None:
    """Returns why no container can be started here; None if one can."""
    import docker  # type: ignore[import-untyped]
    from docker.errors import DockerException  # type: ignore[import-untyped]

    try:
        client = docker.from_env()
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:
        return f"Docker cannot be reached ({error}): start it, or run without --postgres docker:…"
    return None


@asynccontextmanager
async def container(version: int, settings: Mapping[str, str]) -> AsyncIterator[PostgresServer]:
    """Runs the official image of a version; removes it with its data at the end."""
    from testcontainers.community.postgres import PostgresContainer

    password = secrets.token_urlsafe(18)
    command = ["postgres"]
    for name, value in {**UNSAFE, **settings}.items():
        command += ["-c", f"{name}={value}"]
    made = PostgresContainer(
        f"postgres:{version}", port=_PORT, username=SUPERUSER, password=password, dbname="postgres", driver=None
    )
    made.with_env("POSTGRES_INITDB_ARGS", _INITDB_ARGS).with_command(command)
    async with started(made):
        yield ContainerServer(await _reach(made), int(made.get_exposed_port(_PORT)), password)


@asynccontextmanager
async def started(container: "DockerContainer") -> AsyncIterator[None]:
    """Removes it at the end, if it was created: its image may be unavailable."""
    try:
        await anyio.to_thread.run_sync(container.start)
        yield
    finally:
        if container._container is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(container.stop)


async def _reach(container: "DockerContainer") -> str:
    """Returns this machine if the port is reachable here. testcontainers only guesses, from /.dockerenv."""
    try:
        async with await anyio.connect_tcp(PostgresServer.host, int(container.get_exposed_port(_PORT))):
            return PostgresServer.host
    except OSError:
        return str(container.get_container_host_ip())


def _skip(what: str) -> NoReturn:
    pytest.skip(f"this test {what}, which it does on this machine only: run it without --postgres docker:…")
