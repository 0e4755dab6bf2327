"""Shared fixtures: the real servers that tests run against, started once per session and only on demand."""

import gc
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.binaries import Binaries, find, find_present
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.postgres import PostgresServer, find_programs
from tests import forks, k3s
from tests.acceptance.order import goes_alone
from tests.api_server_pool import ApiServerPool
from tests.initialised import initialised
from tests.servers import DEFAULT, Servers, create_database, missing_docker, read_choice

SERVERS = pytest.StashKey[Servers]()
_TESTS = Path(__file__).parent
#: Only `make test-all` runs these; their modules need no mark.
_SLOW = ("deploy", "docs")
#: Order of folders for parallel runs: slowest first, so that tests of milliseconds fill the last seconds.
_ORDER = ("docs", "deploy", "acceptance", "browser", "integration", "unit")
#: Modules of integration that run so long that they come before the last folders. Longest first.
_EARLY = ("test_privilege_faults", "test_database_worker", "test_databases_in_turn", "test_local")

# Many Go programs run beside each other: collecting garbage less often saves a quarter of an API server's start, and
# one thread each a fifth of the CPU of its requests.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMAXPROCS", "1")
# How long an example takes depends on the machine. The same commit is tested with the same examples, so that a failure
# has its cause in the change; a search, for which EXAMPLES is set, draws others in each run.
settings.register_profile(
    "untimed",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "50")),
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        default=os.environ.get("TEST_POSTGRES", DEFAULT),
        metavar="VERSION",
        help=f"PostgreSQL to test against: a major version, or docker:VERSION (TEST_POSTGRES, else {DEFAULT})",
    )
    parser.addoption(
        "--kubernetes",
        default=os.environ.get("TEST_KUBERNETES", k3s.CHOICES[0]),
        choices=k3s.CHOICES,
        help="the API server that tests share: of this machine, or K3s in a container (TEST_KUBERNETES)",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until the tests are collected, since they all stay
    config.stash[SERVERS] = chosen = read_choice(config.getoption("--postgres"))
    if (
        chosen.docker or config.getoption("--kubernetes") != k3s.CHOICES[0]
    ):  # Docker's client leaves its Unix sockets to the garbage collector
        config.addinivalue_line("filterwarnings", r"ignore:unclosed <socket.socket fd=\d+, family=1,:ResourceWarning")
    config.addinivalue_line("markers", "postgres: runs against the PostgreSQL of --postgres (set automatically)")
    config.addinivalue_line("markers", "since(version, what): requires a feature that PostgreSQL has since a version")
    config.addinivalue_line("markers", "before(version, what): tests behaviour of PostgreSQL before a version")


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    version = config.stash[SERVERS].version
    folders = {path: path.relative_to(_TESTS).parts[0] for path in {item.path for item in items}}
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place(folders[item.path], item.path.stem))
    for item in items:
        if folders[item.path] in _SLOW:
            item.add_marker("slow")
        if servers.__name__ in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")
        for mark in item.iter_markers("since"):
            since, what = mark.args
            item.add_marker(pytest.mark.skipif(version < since, reason=f"PostgreSQL {since} or later: {what}"))
        for mark in item.iter_markers("before"):
            before, what = mark.args
            item.add_marker(pytest.mark.skipif(version >= before, reason=f"before PostgreSQL {before}: {what}"))


def _place(folder: str, module: str) -> tuple[int, int]:
    if folder == "integration" and module in _EARLY:
        return _ORDER.index("acceptance"), 1 + _EARLY.index(module)
    return _ORDER.index(folder), 0


def pytest_collection_finish() -> None:
    """Leaves modules and tests out of garbage collections: a full one takes 0.01 s instead of 0.4 s."""
    gc.freeze()
    gc.enable()


class _GroupedSchedule(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps a module, or a class of one, on one worker, except where tests wait long and share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        alone = nodeid.startswith("tests/docs/test_pages.py::") or goes_alone(nodeid)
        return nodeid if alone else nodeid.rsplit("::", 1)[0]


@pytest.hookimpl(optionalhook=True)  # missing with -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _GroupedSchedule(config, log) if config.getoption("dist") == "loadscope" else None


def shown(request: pytest.FixtureRequest) -> AbstractContextManager[None]:
    """Shows output immediately, for the progress of slow steps."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    return nullcontext() if capture is None else capture.global_and_fixture_disabled()


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    yield
    forks.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def binaries(request: pytest.FixtureRequest) -> Binaries:
    """kube-apiserver and etcd. If they must be built first, pytest shows the progress."""
    with nullcontext() if find_present() else shown(request):
        return await find(Display(sys.stderr))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[Servers]:
    """Starts servers of the version given by --postgres, which is downloaded first if needed."""
    chosen = request.config.stash[SERVERS]
    if chosen.docker:
        if why := missing_docker():
            pytest.skip(why)
        yield chosen
        return
    with shown(request):
        await find_programs(chosen.version, Display(sys.stderr))
    async with initialised(chosen.version) as original:
        yield replace(chosen, original=original)


@pytest.fixture(scope="session")
def shared_binaries(request: pytest.FixtureRequest) -> Binaries | None:
    """The programs of the shared API server; None if it runs in a container."""
    if request.config.getoption("--kubernetes") == k3s.CHOICES[0]:
        found: Binaries = request.getfixturevalue("binaries")
        return found
    if why := missing_docker():
        pytest.skip(why)
    return None


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server(shared_binaries: Binaries | None) -> AsyncIterator[ApiServer]:
    """One API server with the CRDs for all tests: never stop, freeze or kill this one."""
    async with k3s.api_server(shared_binaries) as server:
        await apply_crds(server)
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_servers(binaries: Binaries) -> AsyncIterator[ApiServerPool]:
    """API servers for tests that need one without CRDs, or change all namespaces, definitions or rights."""
    pool = ApiServerPool(binaries)
    yield pool
    await pool.close()


@asynccontextmanager
async def lent(request: pytest.FixtureRequest, pool: ApiServerPool) -> AsyncIterator[ApiServer]:
    """Lends an API server to a fixture; after a failed test, it is not lent again."""
    failed = request.session.testsfailed
    async with pool.lend() as server:
        yield server
        if request.session.testsfailed > failed:
            pool.abandon(server)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server(servers: Servers) -> AsyncIterator[PostgresServer]:
    """One PostgreSQL for all tests: never stop, freeze or kill this one. All its databases share their roles."""
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def own_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    """A PostgreSQL for one test (0.6 s), which may do anything with it."""
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(api_server: ApiServer) -> str:
    """A new namespace for one test; its name."""
    name = f"test-{secrets.token_hex(4)}"
    await create_namespace(api_server, name)
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def database(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A new empty database for one test; its DSN, as superuser."""
    name = f"test_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(postgres_server.dsn())
    try:
        await create_database(connection, name)
        yield postgres_server.dsn(database=name)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()
