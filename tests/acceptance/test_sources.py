"""Changes in every source, in Kubernetes and in PostgreSQL, are noticed through that source and no other.

The controller of these tests reads nothing by itself: its resync interval is years. It is idle before each change, so
that no pending reconcile finds the change.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.relay import relay
from tests.acceptance.service_account import ServiceAccount, installation_for
from tests.acceptance.sources import SOURCES, ReconcileSource, SourceScene
from tests.acceptance.world import Controller, make_kube, open_database, remove, running
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: In seconds: deadline for noticing a change on a busy machine, far sooner than by the next resync; and how long the
#: controller must not notice a change whose source is disabled.
SOON = 45.0
UNNOTICED = 3.0

_YEARS = "100000h"

#: Sources that are disabled together: no change of one could be noticed through the other, since they differ in kind.
PAIRS = (
    ("object", "attribute"),
    ("password-secret", "membership"),
    ("connection-secret", "setting"),
    ("verifier", "comment"),
    ("group", "claim"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(
    api_server: ApiServer, home: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SourceScene]:
    """A controller that reads nothing by itself."""
    kube, folder = await make_kube(api_server), tmp_path_factory.mktemp("sources")
    options = ("--namespace", kube.namespace, "--resync-interval", _YEARS)
    async with relay(api_server) as between, open_database(home.dsn()) as database:
        account = ServiceAccount(api_server, installation_for(kube.namespace), folder, between.url)
        async with running(Controller(account, home.dsn(), folder, *options)) as controller:
            yield SourceScene(kube, database, between, controller, "")
        await remove(kube)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(stage: SourceScene) -> AsyncIterator[SourceScene]:
    made = SourceScene(stage.kube, stage.database, stage.relay, stage.controller, f"s{secrets.token_hex(3)}")
    yield made
    await made.kube.delete_all()
    await made.kube.wait_number(0)


async def prepare(scene: SourceScene, sources: Sequence[ReconcileSource]) -> None:
    for source in sources:
        await source.prepare(scene)
    await scene.controller.rest()


async def check_noticed(scene: SourceScene, source: ReconcileSource) -> None:
    async def is_so() -> bool:
        return await source.noticed(scene)

    assert await reached(is_so, SOON), f"{source.name} was not noticed within {SOON} s"


async def test_every_watched_catalog_has_a_source_in_the_table(scene: SourceScene) -> None:
    rows = await scene.database.connection.fetch("SELECT catalog::regclass::text AS name FROM pgrole.fingerprint_now")
    assert {row["name"] for row in rows} == {source.catalog for source in SOURCES if source.catalog}


def test_every_source_is_in_one_pair() -> None:
    assert sorted(chain.from_iterable(PAIRS)) == sorted(source.name for source in SOURCES)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
async def test_disabling_two_sources_hides_only_their_own_changes(scene: SourceScene, pair: tuple[str, str]) -> None:
    """So each change is noticed in the tests of the other sources, and through its own source only."""
    disabled = [source for source in SOURCES if source.name in pair]
    await prepare(scene, SOURCES)
    async with AsyncExitStack() as stack:
        for source in disabled:
            await stack.enter_async_context(source.without(scene))
        for each in SOURCES:
            await each.change(scene)
        for other in SOURCES:
            if other not in disabled:
                await check_noticed(scene, other)
        noticed: list[str] = []

        async def is_any_noticed() -> bool:
            noticed[:] = [source.name for source in disabled if await source.noticed(scene)]
            return bool(noticed)

        assert not await reached(is_any_noticed, UNNOTICED), f"{noticed} was noticed in another way"
