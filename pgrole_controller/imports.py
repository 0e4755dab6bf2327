"""What a start leaves out of its imports, without anything being missed later."""

import gc
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def sparing() -> Iterator[None]:
    """Around imports. No collection looks for garbage among modules, then or later: they live as long as the process.

    Contexts for TLS that are made meanwhile, as aiohttp makes two, read this machine's CAs with their first connection.
    """
    collects = gc.isenabled()
    gc.disable()
    ssl.SSLContext.set_default_verify_paths = _read_later  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths  # that of its base is seen again
        gc.freeze()
        if collects:
            gc.enable()


class _UnreadContext(ssl.SSLContext):
    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401 - whatever SSLContext takes
        return _read(self).wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:  # noqa: ANN401
        return _read(self).wrap_socket(*arguments, **named)


def _read_later(context: ssl.SSLContext) -> None:
    context.__class__ = _UnreadContext


def _read(context: ssl.SSLContext) -> ssl.SSLContext:
    context.__class__ = ssl.SSLContext
    context.set_default_verify_paths()
    return context
