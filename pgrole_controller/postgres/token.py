"""Passwords printed by a command, which runs for each connection: for the tokens of cloud providers.

For example ``aws rds generate-db-auth-token --hostname "$PGHOST" --port "$PGPORT" --username "$PGUSER"`` in a script.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import PurePath

import anyio
import anyio.abc

from pgrole_controller.core.errors import Reason, Transient

TOKEN_SECONDS = 10.0
MAX_BYTES = 1 << 16
_SHOWN = 300
#: Prefix of the controller's own settings, e.g. the DSN: the command does not get them.
_OURS = "PGROLE_"


@dataclass(frozen=True, slots=True)
class TokenCommand:
    """A program and its arguments, run without a shell. Two commands with the same words are equal."""

    argv: tuple[str, ...]

    async def __call__(self, host: str, port: int, user: str) -> str:
        """The command's output, stripped. The command finds host, port and user in PGHOST, PGPORT and PGUSER.

        Raises Transient if it fails, prints nothing or more than one line, or takes longer than 10 s. The error never
        contains its output, only the first line of its standard error.
        """
        if not self.argv:
            raise self._failure("names no program")
        try:
            with anyio.fail_after(TOKEN_SECONDS):
                code, printed, complaint = await self._run(host, port, user)
        except TimeoutError:
            raise self._failure(f"did not end within {TOKEN_SECONDS:.0f} s") from None
        except (OSError, ValueError) as error:
            raise self._failure(f"cannot be run: {getattr(error, 'strerror', None) or error}") from error
        if code != 0:
            raise self._failure(f"failed (exit code {code}): {_first_line(complaint)}")
        return self._read(printed)

    async def _run(self, host: str, port: int, user: str) -> tuple[int, bytes, bytes]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        process = await anyio.open_process(
            self.argv,
            stdin=subprocess.DEVNULL,
            env={**own, "PGHOST": host, "PGPORT": str(port), "PGUSER": user},
            start_new_session=True,
        )
        printed, complaint = bytearray(), bytearray()
        async with process:
            try:
                async with anyio.create_task_group() as tasks:
                    if process.stdout is not None and process.stderr is not None:
                        tasks.start_soon(_collect, process.stdout, printed)
                        tasks.start_soon(_collect, process.stderr, complaint)
                    await process.wait()
            except BaseException:
                _end(process)
                raise
        return process.returncode or 0, bytes(printed), bytes(complaint)

    def _read(self, printed: bytes) -> str:
        try:
            token = printed.decode().strip()
        except UnicodeDecodeError:
            raise self._failure("printed something that is not text") from None
        if not token:
            raise self._failure("printed nothing")
        if len(printed) > MAX_BYTES or not token.isprintable():
            raise self._failure(f"printed more than one line of at most {MAX_BYTES} bytes")
        return token

    def _failure(self, what: str) -> Transient:
        name = PurePath(self.argv[0]).name if self.argv else ""
        return Transient(Reason.SERVER_NOT_READY, f'the token command "{name}" {what}')


async def _collect(stream: AsyncIterable[bytes], into: bytearray) -> None:
    """Reads the whole stream, so that its writer does not block, and keeps at most one byte above the limit."""
    async for piece in stream:
        into.extend(piece[: MAX_BYTES + 1 - len(into)])


def _end(process: anyio.abc.Process) -> None:
    """Kills the command and its children, which are its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _first_line(text: bytes) -> str:
    lines = (line.strip() for line in text.decode(errors="replace").splitlines())
    return next((line for line in lines if line), "no error output")[:_SHOWN]
