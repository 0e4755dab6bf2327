"""Entry points of the programs. SIGINT or SIGTERM ends them silently, even during their imports.

The first process of a container needs a handler for that: without one, the kernel ignores SIGTERM.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 128 + 2  # as `ending.INTERRUPTED`, which is not imported yet
_TERMINATED = 128 + 15


def main() -> None:
    """`pgrole-controller` and `kubectl-pgrole`."""
    with _ending_at_signals():
        from pgrole_controller import cli
    cli.main()


def complete_for_kubectl() -> None:
    """`kubectl_complete-pgrole`."""
    with _ending_at_signals():
        from pgrole_controller import cli
    cli.complete_for_kubectl()


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """Unless a signal is ignored, as SIGINT is in a background job of a shell. SIGTERM ends a command later, too, until
    it prepares for that.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(_TERMINATED))
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    main()
