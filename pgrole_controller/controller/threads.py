"""Where the event loop has names of hosts looked up: in a thread for each.

The loop's own few threads are held, for as long as a resolver takes, by the hosts of one server whose names nobody
answers for: then no name of any other server, nor that of the API server, could be looked up; and the process could not
end before the resolver has given up.
"""

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any


class Threads(ThreadPoolExecutor):
    """For the loop, which takes no other executor. Nothing waits for its threads; each ends with its call."""

    def submit(self, call: Callable[..., Any], /, *arguments: object, **named: object) -> Future[Any]:
        future: Future[Any] = Future()
        thread = Thread(target=_run, args=(future, partial(call, *arguments, **named)), name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as a lookup fails, which whoever asked for it can tell of
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
