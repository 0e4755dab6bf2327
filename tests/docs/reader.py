"""Follows a page as its reader would, with a checkout, the programs, a cluster and a PostgreSQL."""

import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.binaries import cache_directory
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer
from pgrole_controller.program import PLUGIN_COMPLETER, PLUGIN_EXECUTABLE
from tests.api_server_pool import ApiServerPool
from tests.deploy.programs import Programs
from tests.docs.output import fits, only_looks
from tests.docs.page import ROOT, Block, Command
from tests.docs.shell import Failed, PageShell, shell
from tests.servers import Servers

_BLOCK_SECONDS = 180.0
_COMES_TRUE_SECONDS = 90.0
_AGAIN_SECONDS = 0.1
_HOSTS = r"hosts: \[[^]]*\.example\.internal\]"
_EXPORTED = re.compile(r"^ *(export \w+=.*)$", re.MULTILINE)
_ASKS = re.compile(r"\b(?:claims (?:release|transfer)|(?:pgrole-controller|kubectl pgrole) approve)\b")
_WAITS_IN_SQL = "pg_sleep(0.02)"
# Sends both statements as one, so that the drift is not repaired before the reader sees it.
_CHANGED, _AT_ONCE = re.compile(r"(?m)^(ALTER ROLE [^;]*);(?=\nSELECT )"), r"\1\\;"
_LONG_ENOUGH = "pg_sleep(5)"  # this machine may be busy with other tests


@dataclass(frozen=True, slots=True)
class PageReader:
    """`place` is the checkout, including the page's files. `server` is None if the page needs no cluster."""

    server: ApiServer | None
    postgres: PostgresServer
    place: Path
    shell: PageShell

    async def prepare(self, script: str) -> None:
        """Raises Failed."""
        await self.shell.run(script, seconds=_BLOCK_SECONDS)

    async def follow(self, blocks: Sequence[Block]) -> None:
        """Raises AssertionError with page and line of anything that differs from the page."""
        for block in blocks:
            for command in block.commands() if block.is_run else ():
                try:
                    await self._type(block, command)
                except Failed as error:
                    raise AssertionError(f"{block.page}:{command.line}: {command.text.strip()}\n{error}") from error

    async def _type(self, block: Block, command: Command) -> None:
        text = self.stand_in(command.text)
        if block.language == "sql":
            text = f"psql -X -v ON_ERROR_STOP=1 \"$ADMIN_DSN\" <<'END_OF_SQL'\n{text}\nEND_OF_SQL\n"
        if command.stays is not None:
            said = await self.shell.begin(text, command.stays, seconds=_BLOCK_SECONDS)
            await self.shell.run("\n".join(_EXPORTED.findall(said)), seconds=_BLOCK_SECONDS)
        elif command.answer and only_looks(command.text):
            await self._look(command, text)
        else:
            answer = "y" if _ASKS.search(text) else ""
            said = await self.shell.run(expecting(command.code, text), seconds=_BLOCK_SECONDS, answer=answer)
            _compare(command, said)

    async def _look(self, command: Command, text: str) -> None:
        """Repeats the command until it shows the expected output, like a person who waits."""
        said = ""
        with anyio.move_on_after(_COMES_TRUE_SECONDS):
            while True:
                said = await self.shell.run(f"(\n{expecting(command.code, text)}) || true\n", seconds=_BLOCK_SECONDS)
                if fits(command.text, command.answer, said):
                    return
                await anyio.sleep(_AGAIN_SECONDS)
        _compare(command, said)

    def stand_in(self, text: str) -> str:
        """Replaces the reader's own values by those of the test."""
        here = f"hosts: [{self.postgres.host}]", f"port: {self.postgres.port}", "sslMode: disable"  # it has no TLS
        text = re.sub(r"(?m)^ *caRef: .*\n|\bcaRef: \{[^}]*\}, *", "", text)
        text = re.sub(rf"(?m)^( *){_HOSTS}.*$", lambda found: "\n".join(found[1] + one for one in here), text)
        text = re.sub(_HOSTS, ", ".join(here), text)
        text = text.replace("username=pgrole_controller", f"username={SUPERUSER}")
        text = text.replace("password=…", f"password={self.postgres.password}").replace(_WAITS_IN_SQL, _LONG_ENOUGH)
        text = text.replace("postgresql://…", self.postgres.dsn())
        text = _CHANGED.sub(_AT_ONCE, text)
        return text.replace("make dev", "pgrole-controller dev").replace("pip install .", "pgrole-controller --version")


@asynccontextmanager
async def reader(
    api_servers: ApiServerPool | None, servers: Servers, programs: Programs, folder: Path, files: Sequence[Block]
) -> AsyncIterator[PageReader]:
    """Provides a new PostgreSQL, the page's files and, given `api_servers`, an empty cluster."""
    async with AsyncExitStack() as stack:
        server = None if api_servers is None else await stack.enter_async_context(api_servers.lend())
        postgres = await stack.enter_async_context(servers.run())
        place = _make_checkout(folder)
        environment = _environment(server, postgres, _make_programs(folder / "programs", programs, postgres), folder)
        (folder / "said").mkdir()
        async with shell(folder / "said", place, environment) as bash:
            made = PageReader(server, postgres, place, bash)
            for block in files:
                path = place / (block.file or "")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(made.stand_in(block.text), encoding="utf-8")
            yield made


def expecting(code: int, text: str) -> str:
    """Returns the command so that it fails unless it ends with this exit code."""
    if code == 0:
        return text
    wrong = f'[ "$ended" -eq {code} ] || {{ echo "ended with exit code $ended, not {code}"; false; }}'
    return f"ended=0\n{{\n{text}\n}} || ended=$?\n{wrong}\n"


def _compare(command: Command, said: str) -> None:
    if command.answer and not fits(command.text, command.answer, said):
        raise Failed(f"the page shows:\n{command.answer}\n\nit said:\n{said}")


def _make_checkout(folder: Path) -> Path:
    """Links the files of this checkout, beside which the page's own files are written."""
    place = folder / "checkout"
    place.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (place / entry.name).symlink_to(entry)
    (place / "ca.crt").write_text("the certificate of an authority\n", encoding="utf-8")
    return place


def _make_programs(folder: Path, programs: Programs, postgres: PostgresServer) -> Path:
    """Installs the programs that a reader has."""
    folder.mkdir()
    psql = postgres.psql
    found = [programs.helm, programs.kubectl, psql, psql.with_name("pg_dump")]
    own = [Path(sys.executable).with_name(name) for name in ("pgrole-controller", PLUGIN_EXECUTABLE, PLUGIN_COMPLETER)]
    for program in (*found, Path(sys.executable), *own):
        (folder / program.name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n', encoding="utf-8")
        (folder / program.name).chmod(0o755)
    return folder


def _environment(server: ApiServer | None, postgres: PostgresServer, programs: Path, folder: Path) -> Mapping[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "KUBE", "HELM", "PYTEST"))}
    kept |= {name: os.environ[name] for name in ("PGROLE_CACHE_DIR", "KUBEBUILDER_ASSETS") if name in os.environ}
    return {
        **kept,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PGROLE_CACHE_DIR": kept.get("PGROLE_CACHE_DIR", str(cache_directory(os.environ))),
        "KUBECONFIG": str(server.kubeconfig if server else folder / "none"),
        "PGROLE_DSN": postgres.dsn(),
        "ADMIN_DSN": postgres.dsn(),
        "PGROLE_HEALTH_PORT": "0",
    }
