"""Changes in every source, in Kubernetes and in PostgreSQL, are noticed through that source and no other.

The controller of these tests reads nothing by itself: its resync interval is years. It is idle before each change, so
that no pending reconcile finds the change.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import combinations

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
_BEGINS = "session with PostgreSQL begins"

#: In how many rounds sources are disabled, each in two of them and no other one in the same two: so whatever else could
#: show a change works in one of the rounds in which its source is disabled.
ROUNDS = 5


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
    await renew_watch(scene)
    for source in sources:
        await source.prepare(scene)
    await scene.controller.rest()


async def renew_watch(scene: SourceScene) -> None:
    """Begins another call of the watch: after WATCH_SECONDS, one installs again what `without` changes."""
    sessions = scene.controller.log.count(_BEGINS)
    await scene.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL pgrole.watch(%'"
    )
    await scene.controller.wait_count(_BEGINS, sessions + 1)


async def check_noticed(scene: SourceScene, source: ReconcileSource) -> None:
    async def is_so() -> bool:
        return await source.noticed(scene)

    assert await reached(is_so, SOON), f"{source.name} was not noticed within {SOON} s"


async def test_every_watched_catalog_has_a_source_in_the_table(scene: SourceScene) -> None:
    rows = await scene.database.connection.fetch("SELECT catalog::regclass::text AS name FROM pgrole.fingerprint_now")
    assert {row["name"] for row in rows} == {source.catalog for source in SOURCES if source.catalog}


@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_disabling_sources_hides_only_their_own_changes(scene: SourceScene, round_: int) -> None:
    """So each change is noticed in the rounds of the other sources, and through its own source only."""
    of_sources = zip(SOURCES, combinations(range(ROUNDS), 2), strict=True)
    disabled = [source for source, rounds in of_sources if round_ in rounds]
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
