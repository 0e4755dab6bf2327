"""helm, kubectl, promtool, krew, and a separate API server, since the tests install cluster-wide objects."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.display import Display
from tests.api_server_pool import ApiServerPool
from tests.conftest import lent, shown
from tests.deploy.programs import NoPrograms, Programs, find, find_krew, find_promtool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def programs(request: pytest.FixtureRequest) -> Programs:
    """If they must be built first, pytest shows the progress."""
    with shown(request):
        try:
            return await find(Display(sys.stderr))
        except NoPrograms as error:
            pytest.skip(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def promtool(request: pytest.FixtureRequest) -> Path:
    """promtool, for the tests of alerts and dashboard."""
    with shown(request):
        try:
            return await find_promtool(Display(sys.stderr))
        except NoPrograms as error:
            pytest.skip(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def krew(request: pytest.FixtureRequest) -> Path:
    """krew, for the plugin."""
    with shown(request):
        try:
            return await find_krew(Display(sys.stderr))
        except NoPrograms as error:
            pytest.skip(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(request: pytest.FixtureRequest, api_servers: ApiServerPool) -> AsyncIterator[ApiServer]:
    """An API server for the tests of one module, without the CRDs."""
    async with lent(request, api_servers) as server:
        yield server
