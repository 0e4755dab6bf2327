"""What tasks of one event loop share: an event that can be set again, calls that an event ends, and the loop itself.

Long work must not keep the loop, which serves every server: it runs in turns, or on a thread. Python runs one thread at
a time, and each that computes makes every turn of the loop wait 5 ms longer. So there are two at most: one for long
calls, and one for the others, which need not wait for these. Each name lookup has a thread of its own.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar, checkpoint

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds after which other tasks have a turn between two steps.
TURN_SECONDS = 0.01

#: A call is long with this many times as many steps as make a thread worth while.
LONG_TIMES = 100

Answer = TypeVar("Answer")


class Turns:
    """Lets other tasks run between the many short steps of one task, but not after each: there may be very many."""

    def __init__(self) -> None:
        self._began = anyio.current_time()

    async def share(self) -> None:
        if anyio.current_time() - self._began >= TURN_SECONDS:
            await checkpoint()
            self._began = anyio.current_time()


async def run_aside(steps: int, many: int, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Runs `call`, on a thread if it takes `many` steps or more."""
    if steps < many:
        return call(*arguments, **options)
    place = _place(_long if steps >= LONG_TIMES * many else _shorter)
    return await anyio.to_thread.run_sync(partial(call, *arguments, **options), limiter=place)


_long: RunVar[anyio.CapacityLimiter] = RunVar("long")
_shorter: RunVar[anyio.CapacityLimiter] = RunVar("shorter")


def _place(kind: RunVar[anyio.CapacityLimiter]) -> anyio.CapacityLimiter:
    """Returns the only place for calls of one kind in this loop."""
    place = kind.get(None)
    if place is None:
        place = anyio.CapacityLimiter(1)
        kind.set(place)
    return place


async def unless(asked: anyio.Event, call: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """Returns what `call` returns, and raises its error. If `asked` is set before that, cancels the call and returns
    None.
    """
    answers: list[Answer] = []
    errors: list[Exception] = []

    async def answer() -> None:
        try:
            answers.append(await call())
        except Exception as error:  # noqa: BLE001 -- raised below, without a group around it
            errors.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await asked.wait()
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return answers[0] if answers else None


class Signal:
    """An event that can be set again and again.

    `set` lasts until `clear`: a task that clears, then reads, then waits misses nothing. `pulse` wakes only the tasks
    that wait at that moment.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():  # otherwise they would wait for another event
            self._event = anyio.Event()

    def pulse(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Waits until set or pulsed; returns at once while set."""
        await self._event.wait()


def report_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A loop's exception handler. Whoever ends a connection need not wait for its last answer, which asyncio would
    report as an error.
    """
    error = context.get("exception")
    if isinstance(error, ConnectionError) and "future" in context:
        log.debug("a connection ended before an answer that nothing waits for", extra={"error": str(error)})
    else:
        loop.default_exception_handler(context)


class LookupThreads(ThreadPoolExecutor):
    """A loop's default executor, which must be of this kind: a thread for each lookup of a host name.

    Otherwise, the hosts of one server could occupy the loop's few threads for as long as a resolver takes, and the
    process could not end before the resolver gives up. It does not wait for these threads at its end.
    """

    def submit(self, call: Callable[..., Any], /, *arguments: object, **named: object) -> Future[Any]:
        future: Future[Any] = Future()
        thread = Thread(target=_run, args=(future, partial(call, *arguments, **named)), name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # reported as a failed lookup
            future.set_exception(OSError(errno.EAGAIN, f"no thread available for a name lookup: {error}"))
        return future


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 -- whoever waits for the future is told
        future.set_exception(error)
    else:
        future.set_result(result)
