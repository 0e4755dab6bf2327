"""Threads for lookups of host names, each of which has one of its own.

Otherwise, the hosts of one server could occupy the event loop's few threads for as long as a resolver takes, and the
process could not end before the resolver gives up.
"""

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any


class LookupThreads(ThreadPoolExecutor):
    """A loop's default executor, which must be of this kind. The process does not wait for the threads at its end."""

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
