"""Long work shares the event loop, a hanging name lookup delays nothing, and a signal wakes every waiter again."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from threading import Event, Thread

import anyio
import pytest

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.event_loop import LONG_TIMES, LookupThreads, Signal, report_unhandled, run_aside, unless
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Endpoint, connect

DEADLINE = 30.0
MANY = 10
LONG = LONG_TIMES * MANY
HANGING = 64


class HeldCalls:
    """Calls that last until they are let go. `most`: of them at once."""

    def __init__(self) -> None:
        self.most = self.ended = 0
        self._running = 0
        self._lock = threading.Lock()
        self._go = threading.Event()

    def call(self) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        assert self._go.wait(DEADLINE)
        with self._lock:
            self._running -= 1
            self.ended += 1

    def let_go(self) -> None:
        self._go.set()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- a thread does it
            await anyio.sleep(0.005)


async def test_a_call_of_few_steps_runs_at_once() -> None:
    assert await run_aside(MANY - 1, MANY, threading.current_thread) is threading.current_thread()
    assert await run_aside(MANY, MANY, threading.current_thread) is not threading.current_thread()


async def test_long_calls_run_one_after_the_other_and_delay_no_shorter_one() -> None:
    """With a thread for each, as many databases that were read at once delayed every turn of the loop by 0.3 s."""
    held = HeldCalls()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(run_aside, LONG, MANY, held.call)
        await until(lambda: held.most == 1)
        with anyio.fail_after(DEADLINE):
            assert await run_aside(LONG - 1, MANY, sum, (1, 2)) == 3
        held.let_go()
    assert (held.most, held.ended) == (1, 8)


async def count_wakes(signal: Signal, wakes: list[int], name: int) -> None:
    await signal.wait()
    wakes.append(name)


async def test_a_pulse_wakes_all_present_waiters_and_no_later_ones() -> None:
    signal, wakes = Signal(), list[int]()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            for name in (1, 2):
                tasks.start_soon(count_wakes, signal, wakes, name)
            await anyio.wait_all_tasks_blocked()
            signal.pulse()
            await anyio.wait_all_tasks_blocked()
            assert sorted(wakes) == [1, 2]
            assert not signal.is_set()
            tasks.start_soon(count_wakes, signal, wakes, 3)
            await anyio.wait_all_tasks_blocked()
            assert 3 not in wakes
            signal.pulse()
    assert wakes[-1] == 3


async def test_a_signal_set_before_anyone_waits_stays_set_until_it_is_cleared() -> None:
    signal = Signal()
    signal.set()
    with anyio.fail_after(DEADLINE):
        await signal.wait()
        await signal.wait()
    assert signal.is_set()
    signal.clear()
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await signal.wait()


async def test_clearing_a_signal_does_not_strand_a_waiter() -> None:
    signal, wakes = Signal(), list[int]()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_wakes, signal, wakes, 1)
            await anyio.wait_all_tasks_blocked()
            signal.clear()
            signal.set()
    assert wakes == [1]


async def test_a_call_ends_with_its_answer_its_error_or_when_it_is_asked_to() -> None:
    asked = anyio.Event()

    async def answer() -> str:
        return "answer"

    async def fail() -> str:
        raise ValueError("wrong")

    async def hang() -> str:
        asked.set()
        await anyio.sleep_forever()
        return "never"

    assert await unless(asked, answer) == "answer"
    with pytest.raises(ValueError, match="wrong"):
        await unless(asked, fail)
    assert await unless(asked, hang) is None


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


async def test_the_answer_of_a_connection_that_ended_is_no_error_and_anything_else_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    for error in (ConnectionError("connection lost"), ValueError("a defect")):
        future = loop.create_future()
        future.set_exception(error)
        context = {"message": "Future exception was never retrieved", "exception": error, "future": future}
        report_unhandled(loop, context)
        assert future.exception() is error
    assert [record.exc_info and record.exc_info[0] for record in caplog.records if record.name == "asyncio"] == [
        ValueError
    ]
