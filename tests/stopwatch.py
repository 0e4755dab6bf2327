"""`python -m tests.stopwatch FILE run …`: runs the controller and times each callback of its event loops.

Writes the longest callbacks to FILE, by CPU time of the thread, which does not depend on other load: a long callback
delays every server. The product contains nothing of this. It imports nothing else from the tests, because the process's
memory is measured as well.
"""

import atexit
import json
import sys
import threading
import time
import traceback
from asyncio import Task, events
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgrole_controller.cli import main

#: Number of callbacks in FILE.
_KEPT = 5
#: How often, in seconds, FILE is written and each loop's stack sampled. Longer callbacks are shown with their stack.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Callback:
    """`cpu` and `wall` are in seconds; `stack` is the last sample, empty for a short callback."""

    cpu: float
    wall: float
    thread: str
    name: str
    stack: str


@dataclass(slots=True)
class _Turn:
    """The current callback of one thread's loop."""

    began: float = 0.0
    stack: str = ""


@dataclass(slots=True)
class Stopwatch:
    file: Path
    longest: list[Callback] = field(default_factory=list)
    changed: bool = True
    turns: dict[int, _Turn] = field(default_factory=dict)

    def start(self) -> None:
        run = events.Handle._run

        def timed(handle: events.Handle) -> None:
            turn = self.turns.setdefault(threading.get_ident(), _Turn())
            turn.stack, turn.began = "", time.monotonic()
            began = time.thread_time()
            try:
                run(handle)
            finally:
                cpu = time.thread_time() - began
                wall, turn.began = time.monotonic() - turn.began, 0.0
                if len(self.longest) < _KEPT or cpu > self.longest[-1].cpu:
                    self._keep(Callback(cpu, wall, threading.current_thread().name, _describe(handle), turn.stack))

        events.Handle._run = timed  # type: ignore[method-assign, assignment]
        threading.Thread(target=self._look, name="stopwatch", daemon=True).start()
        atexit.register(self._write)

    def _keep(self, callback: Callback) -> None:
        self.longest = sorted([*self.longest, callback], key=lambda one: -one.cpu)[:_KEPT]
        self.changed = True

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            for ident, turn in list(self.turns.items()):
                frame = sys._current_frames().get(ident)
                if turn.began and time.monotonic() - turn.began > _LOOK_SECONDS and frame is not None:
                    turn.stack = "".join(traceback.format_stack(frame, limit=12))
            if self.changed:
                with suppress(OSError):  # a test may exhaust its descriptors; try again next time
                    self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(f".{threading.get_ident()}")  # at the exit, two threads write
        with new.open("w", encoding="utf-8") as file:
            self.changed = False
            json.dump([asdict(one) for one in self.longest], file)
        new.replace(self.file)


def _describe(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Task):
        return f"task {owner.get_name()}"
    # Not its repr: the repr of a response before its start keeps aiohttp from reading its headers later.
    named = getattr(callback, "func", callback)
    return f"{type(owner).__name__} {getattr(named, '__qualname__', type(named).__name__)}"


if __name__ == "__main__":
    Stopwatch(Path(sys.argv.pop(1))).start()
    main()
