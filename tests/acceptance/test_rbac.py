"""What the controller may do in a cluster is what it needs: no less, as nothing is refused, and no more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.deadline import reached
from pgrole_controller.local.manifests import apply, apply_crds, create_namespace
from pgrole_controller.local.rights import may, read_rights
from tests.acceptance.account import OWN_NAMESPACE, Account, installation_for
from tests.acceptance.permissions import Permission, read_permissions, take_away
from tests.acceptance.relay import relay
from tests.acceptance.servers import PgServers
from tests.acceptance.uses import SERVER, Place, new_name, use_of
from tests.acceptance.world import PATIENCE, Controller, Kube, open_database, running
from tests.servers import Servers

TEAM = "team-x"
OVERLAYS = {"cluster": None, "namespace": TEAM}

#: What is in both overlays is taken away in one of them.
TAKEN = [
    pytest.param(overlay, one, id=f"{overlay}: {one}")
    for overlay, watched in OVERLAYS.items()
    for one in read_permissions(installation_for(watched))
    if overlay == "cluster" or one.role[1].removeprefix(installation_for(watched).name) not in ("", "-servers")
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(
    request: pytest.FixtureRequest,
    binaries: Binaries,
    servers: Servers,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Place]:
    """An API server of its own, since rights are taken away here, and a controller that is one of several."""
    watched, folder = OVERLAYS[request.param], tmp_path_factory.mktemp(request.param)
    async with (
        run_api_server(binaries=binaries, audit=True) as server,
        servers.run() as postgres,
        open_database(postgres.dsn()) as database,
        relay(server) as between,
    ):
        await apply_crds(server)
        for namespace in (TEAM, OWN_NAMESPACE):
            await create_namespace(server, namespace)
        account = Account(server, installation_for(watched), folder, between.url)
        declared, kube = PgServers(server), Kube(server, TEAM)
        await declared.apply(SERVER, postgres)
        options = ("--leader-election", "true", *(() if watched is None else ("--namespace", watched)))
        async with running(Controller(account, "", folder, *options), connected=False) as controller:
            yield Place(account, kube, declared, postgres, database, between, controller)


@pytest.fixture
def allowed(place: Place) -> list[Permission]:
    return read_permissions(place.account.installation)


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_all_that_is_allowed_is_used_and_nothing_else_is_asked_for(
    place: Place, allowed: list[Permission]
) -> None:
    audit, user = place.server.audit, place.account.installation.user
    for use in dict.fromkeys(map(use_of, allowed)):
        name = new_name()
        await use.prepare(place, name)
        await use.do(place, name)
    for permission in allowed:
        await place.wait_used(permission, 0)
    asked = [entry for entry in audit.read() if entry.user == user]
    covering = {entry: [one for one in allowed if one.covers(entry)] for entry in asked}
    assert list(audit.refused()) == []
    assert [entry for entry, by in covering.items() if not by] == []
    # Each is needed: there is something that no other one allows.
    assert {by[0] for by in covering.values() if len(by) == 1} == set(allowed)


@asynccontextmanager
async def without(place: Place, taken: Permission) -> AsyncIterator[None]:
    """The account may do all but this."""
    documents = read_rights(place.account.installation)
    role = next(one for one in documents if (one["kind"], one["metadata"]["name"]) == taken.role)
    await apply(place.server, take_away(documents, taken))
    await wait_effect(place, taken, False)
    yield
    await apply(place.server, role)
    await wait_effect(place, taken, True)


async def wait_effect(place: Place, permission: Permission, wanted: bool) -> None:
    async def is_so() -> bool:
        scope = {"namespace": permission.namespace, "name": permission.name}
        user = place.account.installation.user
        return wanted is await may(place.server, user, permission.verb, permission.group, permission.resource, **scope)

    assert await reached(is_so, PATIENCE)


@pytest.mark.parametrize(("place", "taken"), TAKEN, indirect=["place"], scope="module")
async def test_without_one_of_its_rights_that_is_refused_and_said_and_with_it_again_all_goes_on(
    place: Place, taken: Permission
) -> None:
    use, name = use_of(taken), new_name()
    words = f'cannot {taken.verb} resource "{taken.resource}"'

    async def is_said() -> bool:
        return await use.said(place, name, words, begun)

    await use.prepare(place, name)
    async with without(place, taken):
        since, begun = place.server.audit.size, len(place.controller.log)
        await use.do(place, name)
        await place.wait_used(taken, since, refused=True)
        assert await reached(is_said, PATIENCE), f"{words!r} is not said"
    name, since = new_name(), place.server.audit.size
    await use.prepare(place, name)
    await use.do(place, name)
    await place.wait_used(taken, since)
    await place.tidy()
