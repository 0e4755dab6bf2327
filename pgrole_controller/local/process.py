"""Child processes: start, stop and freeze a program, which also ends when this process ends.

Each child leads its own session, so Ctrl-C in a terminal reaches only this process, which stops its children in order.
On Linux the kernel ends them when this process ends, even by SIGKILL; elsewhere a child outlives a killed parent.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio


async def reached(condition: Callable[[], Awaitable[bool]], seconds: float, every: float = 0.05) -> bool:
    """Polls until the condition holds (True) or time runs out (False). Passes on what `condition` raises."""
    with anyio.move_on_after(seconds):
        while True:
            if await condition():
                return True
            await anyio.sleep(every)
    return False


_STAT = Path("/proc/self/stat")  # Linux only
_LAUNCH = Path(__file__).with_name("launch.py")
_STOP_SECONDS = 20.0
_GONE_SECONDS = 10.0
_LAST_LINES = 15


class LocalError(Exception):
    """Something is missing on this machine or did not start; the message says what to do."""


class NotStopped(LocalError):
    """A program, or a descendant of it, still runs after SIGKILL."""


def tied_to_parent(command: Sequence[str | Path], signum: signal.Signals = signal.SIGKILL) -> list[str]:
    """Returns the command line that runs `command` and ends it by `signum` when this process ends."""
    return [
        *(sys.executable, "-I", "-S", str(_LAUNCH), str(int(signum)), str(os.getpid())),
        *(str(part) for part in command),
    ]


class Process:
    """A program and its log file, to which every start appends. `command` runs as given: see `tied_to_parent`."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._is_paused = False

    @property
    def pid(self) -> int:
        """Its process id. Raises LocalError if it was never started."""
        if self._process is None:
            raise LocalError(f"{self.name} has not been started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts it unless it runs. Raises LocalError if the program cannot be executed."""
        if self.running:
            return
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise LocalError(f"cannot start {self.name}: {error}") from error

    async def wait(self) -> int:
        """Waits until it ends; returns its exit code (negative: the signal that ended it)."""
        if self._process is None:
            raise LocalError(f"{self.name} has not been started")
        return await self._process.wait()

    async def stop(self, signum: signal.Signals = signal.SIGTERM) -> int | None:
        """Asks it to end, and kills it after 20 s. Returns its exit code; None if it was not running."""
        if not self.running:
            return None
        self.send(signum)
        if self._is_paused:
            self.resume()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_STOP_SECONDS):
                await self.wait()
            await self.kill()
        return await self.wait()

    async def kill(self) -> None:
        """Kills it and all its descendants, and waits until they have ended. Raises NotStopped if one has not."""
        if not self.running:
            return
        family = [self.pid, *descendants(self.pid)]
        for pid in family:
            _send(pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await self.wait()
            gone = await reached(partial(_are_gone, family), _GONE_SECONDS, every=0.005)
        if not gone:
            raise NotStopped(f"{self.name} did not exit within {_GONE_SECONDS:.0f} s")

    def pause(self) -> None:
        """Freezes it and all its descendants: connections stay open and nothing answers."""
        self._is_paused = True
        for pid in [self.pid, *descendants(self.pid)]:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        self._is_paused = False
        for pid in [*descendants(self.pid), self.pid]:
            _send(pid, signal.SIGCONT)

    def send(self, signum: signal.Signals) -> None:
        if self.running:
            _send(self.pid, signum)

    def last_lines(self) -> str:
        """Returns the end of its log, for an error message."""
        if not self.log.exists():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join(f"  {line[:500]}" for line in lines)

    def failure(self, what: str) -> LocalError:
        """Returns the error that says `what` happened to this program, with the end of its log."""
        return LocalError(f"{self.name} {what}; last lines of {self.log}:\n{self.last_lines()}")


async def _are_gone(pids: Sequence[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """Tells whether the process exists and is not a zombie."""
    return _parent(pid) is not None if _STAT.exists() else pid in _parents()


def descendants(pid: int) -> list[int]:
    """Returns every live process below `pid`, parents before children."""
    parents = _parents()
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == ancestor)
    return found[1:]


def _parents() -> dict[int, int]:
    """Returns the parent of every live process."""
    if not _STAT.exists():
        table = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in (line.split() for line in table.splitlines())}
    processes = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return {pid: parent for pid in processes if (parent := _parent(pid)) is not None}


def _parent(pid: int) -> int | None:
    """Returns the parent of a process, according to Linux; None if it has ended or is a zombie."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZX" else int(parent)


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended, as intended or as `wait` will see
        os.kill(pid, signum)
