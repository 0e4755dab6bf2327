"""Entry points of the programs. SIGINT ends them without a traceback while they import what they need, too."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 128 + 2  # as `ending.INTERRUPTED`, which is not imported yet


def main() -> None:
    """`pgrole-controller` and `kubectl-pgrole`."""
    with _ending_at_sigint():
        from pgrole_controller import cli
    cli.main()


def complete_for_kubectl() -> None:
    """`kubectl_complete-pgrole`."""
    with _ending_at_sigint():
        from pgrole_controller import cli
    cli.complete_for_kubectl()


@contextmanager
def _ending_at_sigint() -> Iterator[None]:
    """Unless SIGINT is ignored, as in a background job of a shell."""
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
