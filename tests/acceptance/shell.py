"""Runs the commands of a page of docs/ as written."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.display import Display
from pgrole_controller.local.postgres import PostgresServer
from tests.deploy.programs import find

_DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^```(sh|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 120.0


def blocks(page: str, heading: str) -> list[str]:
    """Returns the blocks of one section, up to the next heading; SQL is passed to psql."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#+ |\Z)", _hide_code(text), re.MULTILINE | re.DOTALL)
    assert found, heading
    section = text[found.start(1) : found.end(1)]
    return [
        code if language == "sh" else f"psql -X -v ON_ERROR_STOP=1 \"$ADMIN_DSN\" <<'END_OF_SQL'\n{code}END_OF_SQL\n"
        for language, code in _FENCE.findall(section)
    ]


def _hide_code(text: str) -> str:
    """Replaces code blocks by blanks of the same length, since a comment in a script is not a heading."""
    return re.sub(r"^```.*?^```$", lambda code: re.sub(r"[^\n]", " ", code[0]), text, flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandShell:
    """A shell with kubectl, psql and pg_dump, and the variables that the pages use. `folder` is the working
    directory.
    """

    folder: Path
    environment: dict[str, str]

    async def run(self, text: str) -> str:
        """Returns the output; stops at the first failure. Raises AssertionError with all output."""
        with anyio.fail_after(_SECONDS):
            done = await anyio.run_process(
                ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", text],
                cwd=self.folder,
                env=self.environment,
                check=False,
            )
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"{text}\n\n{said}"
        return said


async def make_shell(server: ApiServer, postgres: PostgresServer, folder: Path) -> CommandShell:
    """Returns an administrator's shell. Raises NoPrograms without kubectl."""
    kubectl = (await find(Display(sys.stderr))).kubectl
    programs = folder / "programs"
    programs.mkdir(parents=True)
    psql = postgres.psql
    for program in (kubectl, psql, psql.with_name("pg_dump"), Path(sys.executable).with_name("pgrole-controller")):
        (programs / program.name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n', encoding="utf-8")
        (programs / program.name).chmod(0o755)
    place = folder / "place"
    place.mkdir()
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "KUBE"))}
    return CommandShell(
        place,
        {
            **kept,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(server.kubeconfig),
            "ADMIN_DSN": postgres.dsn(),
        },
    )
