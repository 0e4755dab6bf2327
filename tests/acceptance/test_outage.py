"""PostgreSQL is down for a while: the controller tries often, reports it once, and recovers when it is back."""

import re

import pytest

from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import scrape
from tests.acceptance.world import PATIENCE, Controller, Stage, running

pytestmark = pytest.mark.slow

#: So many attempts on a server that refuses connections, at 200 ms each: PATIENCE is enough for five times as many.
ATTEMPTS = 40
#: What may be logged of them, and of the beginning of the outage.
TOLD = 5

NO_SESSION = re.compile(r"^.*WARN\S*.*(?:no session with PostgreSQL|session with PostgreSQL ended).*$", re.MULTILINE)


async def wait_attempts(controller: Controller, count: float) -> None:
    """Waits until this many more attempts have failed."""
    before = (await scrape(controller)).sum("pgrole_session_failures_total")

    async def is_tried() -> bool:
        return (await scrape(controller)).sum("pgrole_session_failures_total") >= before + count

    assert await reached(is_tried, PATIENCE, every=0.2)


async def test_a_server_that_is_away_is_tried_often_told_of_once_and_reconciled_when_it_is_back(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()) as controller:
        await kube.apply_all({name: {} for name in ("stays", "drifts", "altered")})
        await kube.wait_all_ready()
        async with stage.database() as database:
            await database.execute("ALTER ROLE drifts CREATEROLE; CHECKPOINT")
        await stage.postgres.stop()
        await kube.apply("altered", login=True)
        await kube.wait_reason("altered", "ServerNotReady")
        said = await kube.wait_reason("stays", "ServerNotReady")
        await wait_attempts(controller, ATTEMPTS)
        assert await kube.get("stays") == said  # written once, whatever the number of attempts
        told = NO_SESSION.findall(controller.log)
        assert 1 <= len(told) <= TOLD, told
        await stage.postgres.start()
        async with stage.database() as database:
            await database.wait_role("drifts", lambda row: not row["rolcreaterole"], "NOCREATEROLE")
            await database.wait_role("altered", lambda row: row["rolcanlogin"], "LOGIN")
        await kube.wait_all_ready()
