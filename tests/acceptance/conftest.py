"""Fixtures for one shared controller process; tests that would disturb it start their own."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.manifests import apply_crds
from pgrole_controller.local.postgres import PostgresServer
from tests import k3s
from tests.acceptance.namespace_pool import NamespacePool
from tests.acceptance.order import place
from tests.acceptance.replicas import Say
from tests.acceptance.service_account import Refusals, check_none_refused
from tests.acceptance.two_teams import TwoTeams, open_two_teams
from tests.acceptance.world import (
    Controller,
    Database,
    ExecutedController,
    Kube,
    Stage,
    make_kube,
    open_database,
    running,
)
from tests.api_server_pool import ApiServerPool
from tests.conftest import lent
from tests.servers import Servers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.path))


@pytest.fixture(scope="session")
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    def tell(what: str, seconds: float) -> None:
        record_property(what, round(seconds, 3))
        print(f"{what}: {seconds:.3f} s")  # noqa: T201 -- a figure for the documents

    return tell


@pytest.fixture(scope="module", autouse=True)
def _nothing_refused(refusals: Refusals) -> Iterator[None]:
    """The rights in deploy/ must suffice. Tests that remove rights do so for other users or elsewhere."""
    refusals.skip()
    yield
    refusals.check()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server(api_server: ApiServer, refusals: Refusals) -> ApiServer:
    """One API server for all tests, on which no controller keeps running: never stop, freeze or kill this one."""
    refusals.watch(api_server)
    return api_server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_api_server(request: pytest.FixtureRequest, api_servers: ApiServerPool) -> AsyncIterator[ApiServer]:
    """An API server with the CRDs, for a module that changes all namespaces or the CRDs, or needs a second one."""
    async with lent(request, api_servers) as server:
        await apply_crds(server)
        yield server
        check_none_refused(server)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    """The server of the shared controller: never stop, freeze or kill this one."""
    async with servers.run() as server:
        yield server


@pytest.fixture(scope="package")
def local_api_servers(shared_binaries: Binaries | None, request: pytest.FixtureRequest) -> ApiServerPool | None:
    """None if the shared API servers run in containers."""
    return None if shared_binaries is None else request.getfixturevalue("api_servers")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_api_server(local_api_servers: ApiServerPool | None, refusals: Refusals) -> AsyncIterator[ApiServer]:
    """The API server of the shared controller, which writes to every PgRole there: never stop or kill this one.

    It is one that earlier tests borrowed, if there is one.
    """
    async with AsyncExitStack() as stack:
        if local_api_servers is None:
            server = await stack.enter_async_context(k3s.api_server(None))
        else:
            server = await stack.enter_async_context(local_api_servers.lend())
            local_api_servers.abandon(server)  # hardly any test after this package borrows one
        await apply_crds(server)
        refusals.watch(server)
        yield server


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def controller(
    shared_api_server: ApiServer, shared_postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Controller]:
    """The shared controller, for all namespaces: never stop or kill this one."""
    folder = tmp_path_factory.mktemp("controller")
    async with running(ExecutedController(shared_api_server, shared_postgres.dsn(), folder)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def database(shared_postgres: PostgresServer, controller: Controller) -> AsyncIterator[Database]:
    """A superuser's session on the shared controller's server."""
    async with open_database(shared_postgres.dsn()) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def kube(shared_api_server: ApiServer, controller: Controller) -> AsyncIterator[Kube]:
    """A namespace that the shared controller watches; objects left in it are deleted."""
    made = await make_kube(shared_api_server)
    yield made
    await made.delete_all()


@pytest.fixture(scope="session")
def namespaces(api_server: ApiServer) -> NamespacePool:
    return NamespacePool(api_server)


@pytest_asyncio.fixture(loop_scope="session")
async def lent_kube(request: pytest.FixtureRequest, namespaces: NamespacePool) -> AsyncIterator[Kube]:
    """A namespace as good as new, for a controller of the test's own."""
    failed = request.session.testsfailed
    async with namespaces.lend() as kube:
        yield kube
        if request.session.testsfailed > failed:
            namespaces.abandon(kube)


@pytest.fixture
def stage(lent_kube: Kube, own_postgres: PostgresServer, tmp_path: Path) -> Stage:
    """For tests that break things: they share nothing but the API server, and their namespace is as good as new."""
    return Stage(lent_kube, own_postgres, tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_teams_in_session(
    api_server: ApiServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TwoTeams]:
    async with open_two_teams(api_server, servers, tmp_path_factory.mktemp("two-teams")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def two_teams(two_teams_in_session: TwoTeams) -> AsyncIterator[TwoTeams]:
    yield two_teams_in_session
    await two_teams_in_session.tidy()
