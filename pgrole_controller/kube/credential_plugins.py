"""Ends the credential plugins of a kubeconfig for which nothing waits any longer.

kubernetes_asyncio leaves a plugin running when a timeout or the end of the process cancels the wait for it. With each
attempt there would be another one, and the end of the event loop would print a traceback.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_started: ContextVar[list[asyncio.subprocess.Process] | None] = ContextVar("credential plugins", default=None)


def register() -> None:
    """Has `ended` find the plugins that kubernetes_asyncio starts."""
    vars(import_module("kubernetes_asyncio.config.exec_provider"))["asyncio"] = SimpleNamespace(
        create_subprocess_exec=_start, get_event_loop=asyncio.get_event_loop, subprocess=asyncio.subprocess
    )


@contextmanager
def ended() -> Iterator[None]:
    """At its end, kills the plugins that were started inside and still run."""
    started: list[asyncio.subprocess.Process] = []
    token = _started.set(started)
    try:
        yield
    finally:
        _started.reset(token)
        for process in started:
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 -- it also closes the pipes


async def _start(*command: str, **options: Any) -> asyncio.subprocess.Process:  # noqa: ANN401 -- any option
    process = await asyncio.create_subprocess_exec(*command, **options)
    started = _started.get()
    if started is not None:
        started.append(process)
    return process
