"""The archive of the kubectl plugin, installed by krew, run by kubectl, and started in the ways that users start it."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from pgrole_controller import __version__
from pgrole_controller.local.postgres import PostgresServer
from tests.deploy.programs import Programs
from tests.servers import Servers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
_BUILD = ROOT / "deploy" / "krew" / "build.py"
_SECONDS = 300.0
SAMPLE = str(ROOT / "deploy" / "samples" / "20-orders-app.yaml")
#: Arguments of each command for an empty server, its exit codes, and text in its output. Add new commands here.
COMMANDS = [
    pytest.param(("claims", "list"), (0,), "ROLE", id="claims"),
    pytest.param(("sql",), (0,), "pgrole", id="sql"),
    pytest.param(("crds",), (0,), "kind: CustomResourceDefinition", id="crds"),
    pytest.param(("plan", "-f", os.devnull), (0,), "nothing to do: no objects", id="plan-nothing"),
    pytest.param(("plan", "-f", SAMPLE), (3,), "create role", id="plan-something"),
    pytest.param(("export",), (0,), "# Exported by", id="export"),
    pytest.param(("access", "--on", "pgrole.claim"), (0,), "owner postgres", id="access"),
    pytest.param(("history",), (0,), "No drift since", id="history"),
    pytest.param(("doctor",), (0,), "schema pgrole", id="doctor"),
    pytest.param(("completion", "bash"), (0,), "kubectl-pgrole", id="completion"),
]


@dataclass(frozen=True, slots=True)
class EndedProgram:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Installed:
    """kubectl with the plugin, as krew installed it from `archive`."""

    kubectl: Path
    home: Path
    archive: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    async def run(self, *words: str, **more: str) -> EndedProgram:
        return await run([str(self.kubectl), "pgrole", *words], {**self.environment, **more})


async def run(command: list[str], environment: Mapping[str, str]) -> EndedProgram:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(_SECONDS):
        out, err = await process.communicate()
    return EndedProgram(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with archive, checksum and manifest."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    if not Path(uv).exists():
        pytest.skip("uv is neither on the PATH nor in .tools: `make env` installs it")
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, str(_BUILD), "--uv", uv, "--into", str(folder), "--level", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, programs: Programs, krew: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "KREW_ROOT": str(home / ".krew"), "LC_ALL": "C.UTF-8"}
    environment["PATH"] = f"{home / '.krew' / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    [archive] = built.glob("*.tar.gz")
    done = subprocess.run(
        [krew, "install", "--manifest", built / "pgrole.yaml", "--archive", archive],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kubectl pgrole" in done.stderr
    return Installed(programs.kubectl, home, archive, environment)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_schema(installed: Installed, servers: Servers) -> AsyncIterator[PostgresServer]:
    """A server with the schema that the plugin prints; its commands change nothing there."""
    async with servers.run() as postgres:
        schema = (await installed.run("sql")).out
        psql = [str(postgres.psql), "-qX", "-v", "ON_ERROR_STOP=1", "-c", schema, postgres.dsn()]
        assert (await run(psql, installed.environment)).code == 0
        yield postgres


@pytest.fixture(scope="module")
def program(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executable of the archive, unpacked."""
    [archive] = built.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["LICENSE", "kubectl-pgrole"]
        packed.extraction_filter = tarfile.data_filter
        packed.extract("kubectl-pgrole", folder)
    return folder / "kubectl-pgrole"


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder in which the first start of each Python leaves the unpacked build for later ones."""
    return tmp_path_factory.mktemp("used-home")


def test_the_manifest_names_the_archive_with_its_checksum(built: Path) -> None:
    manifest = yaml.safe_load((built / "pgrole.yaml").read_text(encoding="utf-8"))
    [archive] = built.glob("*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert manifest["spec"]["version"] == f"v{__version__}"
    [one] = manifest["spec"]["platforms"]
    assert one["sha256"] == digest
    assert one["uri"].endswith(f"/v{__version__}/{archive.name}")
    assert archive.with_name(f"{archive.name}.sha256").read_text() == f"{digest}  {archive.name}\n"


async def test_kubectl_runs_it_under_its_own_name(installed: Installed) -> None:
    said = await installed.run("--version")
    assert said == EndedProgram(0, f"kubectl pgrole {__version__}\n", "")
    said = await installed.run("plan", "--help")
    assert said.code == 0, said.err
    assert said.out.startswith("usage: kubectl pgrole plan ")
    assert "  kubectl pgrole plan " in said.out


@pytest.mark.parametrize(("words", "codes", "says"), COMMANDS)
async def test_its_commands_work_against_a_server(
    installed: Installed, with_schema: PostgresServer, words: tuple[str, ...], codes: tuple[int, ...], says: str
) -> None:
    said = await installed.run(*words, PGROLE_DSN=with_schema.dsn())
    assert said.code in codes, said.err
    assert says in said.out


async def test_kubectl_completes_its_commands(installed: Installed) -> None:
    printed = await installed.run("completion", "kubectl")
    place = installed.home / ".krew" / "bin" / "kubectl_complete-pgrole"
    place.write_text(printed.out, encoding="utf-8")
    place.chmod(0o755)
    asked = await run([str(installed.kubectl), "__complete", "pgrole", "hist"], installed.environment)
    assert asked.out.splitlines() == ["history\tshow drifts with their author", ":4"]
    asked = await run([str(installed.kubectl), "__complete", "pgrole", "plan", "-o", ""], installed.environment)
    assert [line.split("\t")[0] for line in asked.out.splitlines()] == ["text", "json", "sql", ":4"]


async def test_simultaneous_first_starts_do_not_conflict(program: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    said = await asyncio.gather(*(run([sys.executable, str(program), "--version"], environment) for _ in range(3)))
    assert set(said) == {EndedProgram(0, f"kubectl pgrole {__version__}\n", "")}
    cache = tmp_path / "home" / ".cache" / "pgrole-controller" / "plugin"
    assert len(list(cache.iterdir())) == 1
    assert cache.stat().st_mode & 0o777 == 0o700


async def test_without_a_writable_home_it_is_unpacked_for_one_run(program: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()  # no folder can be created below it, even by root
    environment = {"HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp"), "PATH": os.environ["PATH"]}
    said = await run([sys.executable, str(program), "--version"], environment)
    assert said == EndedProgram(0, f"kubectl pgrole {__version__}\n", "")
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_code_writable_by_others_is_not_run(program: Path, used_home: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    await run([sys.executable, str(program), "--version"], {**environment, "HOME": str(used_home)})
    unpacked = used_home / ".cache" / "pgrole-controller"
    shutil.copytree(unpacked, tmp_path / ".cache" / "pgrole-controller")
    [folder] = (tmp_path / ".cache" / "pgrole-controller" / "plugin").iterdir()
    (folder / "pgrole_controller" / "cli.py").write_text("raise SystemExit('ran the code of another user')\n")
    assert "another user" in (await run([sys.executable, str(program), "--version"], environment)).err
    folder.chmod(0o777)
    said = await run([sys.executable, str(program), "--version"], environment)
    assert said.out == f"kubectl pgrole {__version__}\n"


async def test_unused_builds_are_removed(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "pgrole-controller" / "plugin"
    for name, days in (("0.1.0-old-cp311", 31), ("0.2.0-used-cp311", 1), (".making-interrupted", 1)):
        (cache / name).mkdir(parents=True)
        then = (cache / name).stat().st_mtime - days * 86400
        os.utime(cache / name, (then, then))
    cache.chmod(0o700)
    await run([sys.executable, str(program), "--version"], {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    left = {entry.name for entry in cache.iterdir()}
    assert "0.2.0-used-cp311" in left
    assert len(left) == 2


@pytest.mark.parametrize("minor", [6, 8, 9, 10])
async def test_an_older_python_starts_a_suitable_one_or_reports_the_required_version(
    program: Path, used_home: Path, tmp_path: Path, minor: int
) -> None:
    older = find_python(minor)
    said = await run([older, str(program), "--version"], {"HOME": str(used_home), "PATH": str(tmp_path)})
    assert said.code == 1
    assert said.err.startswith("kubectl pgrole: it needs Python 3.11 to 3.14, but ")
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 127\n")  # as a version manager leaves them
    (tmp_path / "python3.12").chmod(0o755)
    (tmp_path / "python3.11").symlink_to(find_python(11))
    said = await run([older, str(program), "--version"], {"HOME": str(used_home), "PATH": f"{tmp_path}:/bin"})
    assert said == EndedProgram(0, f"kubectl pgrole {__version__}\n", "")


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
async def test_every_supported_python_runs_it(program: Path, used_home: Path, minor: int) -> None:
    environment = {"HOME": str(used_home), "PATH": "/bin", "PGROLE_DSN": "postgresql://a:b@127.0.0.1:1/c"}
    said = await run([find_python(minor), str(program), "claims", "list"], environment)
    assert said.code == 1
    assert said.err.startswith("kubectl pgrole: "), said.err
    assert "Traceback" not in said.err


def find_python(minor: int) -> str:
    """Skips if this machine has no Python 3.`minor` that runs."""
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3"))
    question = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    for found in (shutil.which(f"python3.{minor}"), *map(str, pyenv)):
        if found and subprocess.run([found, "-c", question], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"python3.{minor} is not installed")
