"""Two processes of one installation: one leads, the other stands by, and takes over whatever happens to the first."""

from tests.acceptance.world import Controller, Stage, open_database

ELECTION = ("--leader-election", "true")


async def leads(controller: Controller, times: int = 1) -> None:
    await controller.wait_count("session with PostgreSQL begins", times)


async def test_one_leads_and_the_other_stands_by_until_it_ends(stage: Stage) -> None:
    first, second = (stage.controller(None, *ELECTION) for _ in range(2))
    await first.start()
    await leads(first)
    await second.start()
    await second.wait_log("ready to lead")
    async with open_database(stage.postgres.dsn()) as database:
        await stage.kube.apply("app", login=True)
        await stage.kube.wait_ready("app")
        assert "session with PostgreSQL begins" not in second.log
        await first.process.stop()
        await leads(second)
        await database.execute("ALTER ROLE app SUPERUSER")
        await database.wait_role("app", lambda role: not role["rolsuper"], "NOSUPERUSER")
    await second.stop()
