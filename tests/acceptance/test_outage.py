"""PostgreSQL is down for a while: the controller retries often, reports it once, and recovers afterwards."""

import re

import pytest

from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import scrape
from tests.acceptance.shell import blocks, make_shell
from tests.acceptance.world import PATIENCE, Controller, Stage, condition, running

pytestmark = pytest.mark.slow

#: Number of attempts on a server that refuses connections, at 200 ms each: PATIENCE allows five times as many.
ATTEMPTS = 40
#: Maximum number of log lines about them and the beginning of the outage.
TOLD = 5

NO_SESSION = re.compile(r"^.*WARN\S*.*(?:no session with PostgreSQL|session with PostgreSQL ended).*$", re.MULTILINE)


async def wait_attempts(controller: Controller, count: float) -> None:
    """Waits until this many more attempts have failed."""
    before = (await scrape(controller)).sum("pgrole_session_failures_total")

    async def is_tried() -> bool:
        return (await scrape(controller)).sum("pgrole_session_failures_total") >= before + count

    assert await reached(is_tried, PATIENCE, every=0.2)


async def test_an_outage_is_retried_often_reported_once_and_reconciled_after_recovery(stage: Stage) -> None:
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


async def test_a_lock_on_the_schema_is_reported_and_the_documented_query_names_its_holder(stage: Stage) -> None:
    [query] = blocks("troubleshooting.md", "A lock on schema pgrole")
    shell = await make_shell(stage.kube.server, stage.postgres, stage.folder / "shell")
    async with running(stage.controller()), stage.database() as holder, stage.database() as database:
        await stage.kube.apply("app", login=True)
        await stage.kube.wait_ready("app")
        await holder.execute("BEGIN; LOCK TABLE pgrole.role_state")
        await database.execute("ALTER ROLE app CREATEDB")
        obj = await stage.kube.wait_reason("app", "ServerNotReady")
        assert "a lock was not available in time" in condition(obj, "Ready")["message"]
        said = await shell.run(query)
        assert re.search(
            rf"^ *{await holder.fetchval('SELECT pg_backend_pid()')} \| pgrole\.role_state \| AccessExclusiveLock",
            said,
            re.MULTILINE,
        )
        assert "(1 row)" in said
        await holder.execute("ROLLBACK")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "NOCREATEDB")
        await stage.kube.wait_ready("app")
