"""What was applied in a database is known after a logical restore, on a server where roles have other oids."""

import secrets

from pgrole_controller.core.privileges.privilege_result import News
from tests.integration.database_world import READ, DatabaseWorkerWorld

OTHER_SERVER = "UPDATE pgrole.applied SET digest = regexp_replace(digest, '@[0-9]+:', '@1:')"


async def exchange_oids(world: DatabaseWorkerWorld) -> None:
    """The two roles exchange their names, and so their oids; their privileges are the same."""
    spare = f"r{secrets.token_hex(4)}"
    for name, renamed in ((world.role, spare), (world.other, world.role), (spare, world.other)):
        await world.home.execute(f"ALTER ROLE {name} RENAME TO {renamed}")
    world.oid, world.other_oid = world.other_oid, world.oid


async def apply_and_restore(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
    await exchange_oids(world)
    await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}, {world.other}; {OTHER_SERVER}")
    world.declare_other(READ)


async def test_drift_that_is_reported_is_not_corrected_after_a_restore(world: DatabaseWorkerWorld) -> None:
    await apply_and_restore(world)
    world.declare(READ, report_only=True)
    world.news()
    async with world.working():
        result = await world.wait(lambda result: bool(result.reported))
        assert (result.drift_count, len(result.reported)) == (0, 1)
        await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
    assert await world.may("DELETE", "app.orders")
    assert [reason for reason, _ in world.news()] == [News.DRIFT_REPORTED]
    assert [await world.count_drifts(role) for role in (world.role, world.other)] == [1, 1]


async def test_after_it_the_record_is_of_this_server(world: DatabaseWorkerWorld) -> None:
    await apply_and_restore(world)
    world.declare(READ)
    async with world.working():
        await world.wait_may("DELETE", "app.orders", expected=False)
        await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
    own = await world.hand.fetchval("SELECT system_identifier FROM pg_control_system()")
    rows = await world.hand.fetch("SELECT role_name, role_oid, digest, drift_count FROM pgrole.applied")
    for row in rows:
        oid = world.oid if row["role_name"] == world.role else world.other_oid
        assert (row["role_oid"], row["drift_count"]) == (oid, 1)
        assert row["digest"].endswith(f" @{own}:{oid}")
    assert len(rows) == 2


async def test_a_new_object_of_the_restored_server_is_no_drift(world: DatabaseWorkerWorld) -> None:
    await apply_and_restore(world)
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait(lambda result: bool(result.reported))
        await world.hand.execute("CREATE TABLE app.late (id int)")
        await world.wait_may("SELECT", "app.late")


async def test_a_record_of_a_role_that_was_not_restored_is_forgotten(world: DatabaseWorkerWorld) -> None:
    await apply_and_restore(world)
    await world.hand.execute("UPDATE pgrole.applied SET role_name = 'gone' WHERE role_name = $1", world.role)
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
    names = {row["role_name"] for row in await world.hand.fetch("SELECT role_name FROM pgrole.applied")}
    assert names == {world.role, world.other}
    assert not await world.may("DELETE", "app.orders")


async def test_a_role_that_was_created_again_on_this_server_is_a_new_one(world: DatabaseWorkerWorld) -> None:
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
    await world.hand.execute(f"DROP OWNED BY {world.role}; DROP ROLE {world.role}; CREATE ROLE {world.role}")
    world.oid = await world.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", world.role)
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_may("SELECT", "app.orders")
        assert not (await world.wait_settled()).reported
