"""event_loop.LookupThreads: a hanging lookup delays neither others nor shutdown."""

import asyncio
import socket
from collections.abc import Iterator
from threading import Event, Thread

import anyio
import pytest

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.event_loop import LookupThreads
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Endpoint, connect

HANGING = 64


@pytest.fixture
def hanging() -> set[str]:
    """The hosts whose lookup hangs at the moment."""
    return set()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, hanging: set[str]) -> Iterator[Event]:
    """Until this is set, the resolver does not answer for hosts that end in .hangs."""
    answered, resolve = Event(), socket.getaddrinfo

    def hang(host: object, *arguments: object, **named: object) -> object:
        if str(host).endswith(".hangs"):
            hanging.add(str(host))
            answered.wait(30)
            hanging.discard(str(host))
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return resolve(host, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield answered
    answered.set()


async def connect_in_vain(*hosts: str) -> str:
    with pytest.raises(PgRoleError) as failure:
        async with connect(Endpoint.of(hosts, 1, "postgres", "u", "p", "disable"), "test"):
            pass
    return failure.value.message


async def test_hanging_lookups_do_not_block_other_lookups(answered: Event, hanging: set[str]) -> None:
    asyncio.get_running_loop().set_default_executor(LookupThreads())

    async def all_hang() -> bool:
        return len(hanging) == HANGING

    async with anyio.create_task_group() as tasks:
        for number in range(HANGING):
            tasks.start_soon(connect_in_vain, f"h{number}.hangs")
        assert await reached(all_hang, 20)
        assert "no answer" not in await connect_in_vain("localhost")
        tasks.cancel_scope.cancel()
    assert not answered.is_set()


def test_shutdown_does_not_wait_for_a_hanging_lookup(answered: Event, hanging: set[str]) -> None:
    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(LookupThreads())

        async def is_asked() -> bool:
            return bool(hanging)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop.getaddrinfo, "name.hangs", 5432)
            assert await reached(is_asked, 20)
            tasks.cancel_scope.cancel()

    asyncio.run(look_up())
    assert hanging == {"name.hangs"}
    assert not answered.is_set()


async def test_an_exception_in_a_lookup_thread_reaches_its_caller() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(LookupThreads())
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, divmod, 1, 0)
    assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)


async def test_a_connection_error_says_that_no_lookup_thread_could_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name == "lookup":
            raise RuntimeError("can't start new thread")
        start(thread)

    asyncio.get_running_loop().set_default_executor(LookupThreads())
    monkeypatch.setattr(Thread, "start", refuse)
    assert "no thread available for a name lookup" in await connect_in_vain("a.name")
