"""Starts controllers by forking a process that has imported everything they need, which saves the imports.

`Forked` is a `Process` whose command is the arguments of `pgrole-controller`. The first one starts the fork server
(`python -m tests.forks DESCRIPTOR`); `close` ends it.

Guarantees: each controller has a session, an environment, a log, module state and an exit code of its own, as after
exec. On Linux the kernel ends it when the fork server ends, and ends the fork server when the tests end.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import NoReturn

from pgrole_controller.local.process import LocalError, Process, tied_to_parent

_LENGTH_BYTES = 4
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class _ForkStart:
    """What to start. Standard output and error are appended to the file `log`."""

    arguments: list[str]
    environment: dict[str, str]
    log: str


class Forked(Process):
    """A controller; `command` is its arguments."""

    _exit: "_Exit | None" = None

    @property
    def pid(self) -> int:
        if self._exit is None:
            raise LocalError(f"{self.name} has not been started")
        return self._exit.pid

    @property
    def running(self) -> bool:
        return self._exit is not None and not self._exit.code.done()

    async def start(self) -> None:
        if self.running:
            return
        environment: Mapping[str, str] = os.environ if self._environment is None else self._environment
        ours, theirs = socket.socketpair()
        with theirs:
            _server().send(_ForkStart(self.command, dict(environment), str(self.log)), theirs)
        _, self._exit = await asyncio.get_running_loop().create_unix_connection(_Exit, sock=ours)
        await self._exit.started

    async def wait(self) -> int:
        if self._exit is None:
            raise LocalError(f"{self.name} has not been started")
        return await asyncio.shield(self._exit.code)


class _Exit(asyncio.Protocol):
    """Receives news of one process from the fork server: a line with its id, and one with its exit code."""

    def __init__(self) -> None:
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._received = b""

    @property
    def pid(self) -> int:
        return self.started.result()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for line, future in zip(self._received.split(b"\n")[:-1], (self.started, self.code), strict=False):
            if not future.done():
                future.set_result(int(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- as of every protocol
        """Without an exit code, the fork server has ended, and its children with it."""
        if not self.started.done():
            self.started.set_exception(LocalError("the fork server has ended"))
        if not self.code.done():
            self.code.set_result(-signal.SIGKILL)


class _ForkServer:
    """The fork server, as seen by the tests."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = tied_to_parent([sys.executable, "-m", __name__, str(number)])
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])

    def send(self, request: _ForkStart, reply: socket.socket) -> None:
        text = json.dumps(asdict(request)).encode()
        socket.send_fds(self._control, [len(text).to_bytes(_LENGTH_BYTES)], [reply.fileno()])
        self._control.sendall(text)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_started: list[_ForkServer] = []


def _server() -> _ForkServer:
    if not _started:
        _started.append(_ForkServer())
    return _started[0]


def close() -> None:
    """Ends the fork server, if it runs, and all its controllers."""
    while _started:
        _started.pop().close()


def _serve(control: socket.socket) -> _ForkStart:
    """Returns in each forked process, with the controller to start there. Ends with the tests."""
    replies: dict[int, socket.socket] = {}
    awake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control, awake], [], [])
        if awake in ready:
            awake.recv(4096)
            _reap(replies)
        if control not in ready:
            continue
        header, descriptors, _, _ = socket.recv_fds(control, _LENGTH_BYTES, 1)
        if not header:
            sys.exit()
        text = control.recv(int.from_bytes(header), socket.MSG_WAITALL)
        reply = socket.socket(fileno=descriptors[0])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _bind_to(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (control, awake, waker, reply, *replies.values()):
                inherited.close()
            return _ForkStart(**json.loads(text))
        replies[pid] = reply
        with contextlib.suppress(BrokenPipeError):  # the test no longer waits: it was cancelled, and its socket closed
            reply.sendall(b"%d\n" % pid)


def _reap(replies: dict[int, socket.socket]) -> None:
    while replies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with replies.pop(pid) as reply, contextlib.suppress(BrokenPipeError):
            reply.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _bind_to(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def _become(request: _ForkStart) -> NoReturn:
    from pgrole_controller.cli import main

    os.setsid()
    log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.clear()
    os.environ.update(request.environment)
    main(request.arguments)
    raise AssertionError("main returns nothing")


def _import_all() -> None:
    """Imports what `run` imports, in the same way, and the models."""
    from pgrole_controller.api import reading
    from pgrole_controller.imports import startup_imports

    import_module("pgrole_controller.cli")
    with startup_imports():
        import_module("pgrole_controller.controller.app")
    reading.load()


if __name__ == "__main__":
    _import_all()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
