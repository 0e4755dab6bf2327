"""What the controller granted on an object that then gets another name, schema or owner, with a real database: it is
revoked and is no drift, unlike what others grant.
"""

from dataclasses import replace

import asyncpg
import pytest

from pgrole_controller.core.contest import LIMIT
from pgrole_controller.core.errors import Reason, Waiting
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, ObjectPrivileges
from pgrole_controller.core.privileges.privilege_result import News
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, SERVER, DatabaseWorkerWorld

TABLE = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}))
COLUMN = replace(TABLE, columns=("id",))
COLUMN_OF_ITEMS = replace(COLUMN, names=("items",))
ROUTINE = ObjectPrivileges(ObjectKind.ROUTINE, "app", ("f",), frozenset({"EXECUTE"}))

#: Counts what the role holds on objects of this database.
HELD = """
SELECT count(*) FROM (
    SELECT relacl FROM pg_class UNION ALL SELECT attacl FROM pg_attribute UNION ALL SELECT proacl FROM pg_proc
    UNION ALL SELECT nspacl FROM pg_namespace
) AS o (acl), aclexplode(o.acl) AS a WHERE a.grantee = $1
"""


def declare(world: DatabaseWorkerWorld, *objects: ObjectPrivileges, report_only: bool = False) -> Grantee:
    plain = world.declare(report_only=report_only)
    declared = {world.database: DatabasePrivileges(world.database, objects=objects)}
    grantee = replace(plain, declared=declared)
    world.grantees.publish(SERVER, grantee)
    return grantee


async def hold(world: DatabaseWorkerWorld, count: int) -> None:
    async def is_so() -> bool:
        return bool(await world.hand.fetchval(HELD, world.oid) == count)

    assert await reached(is_so, DEADLINE), f"the role does not hold {count} privileges; {world.result}"


def find_told(world: DatabaseWorkerWorld) -> list[str]:
    """Returns the Events about drift."""
    return [note for reason, note in world.news() if reason is not News.PRIVILEGES_EXTENDED]


@pytest.mark.parametrize("report_only", [False, True])
@pytest.mark.parametrize(
    ("declared", "change"),
    [
        (TABLE, "ALTER TABLE app.orders RENAME TO orders_old; CREATE TABLE app.other (id int)"),
        (TABLE, "ALTER TABLE app.orders RENAME TO orders_old; ALTER TABLE app.orders_old OWNER TO pg_database_owner"),
        (TABLE, "ALTER TABLE app.orders SET SCHEMA elsewhere"),
        (TABLE, "ALTER SCHEMA app RENAME TO apart"),
        (COLUMN, "ALTER TABLE app.orders RENAME TO orders_old"),
        (ROUTINE, "ALTER FUNCTION app.f(int) RENAME TO g"),
    ],
)
async def test_what_was_granted_before_a_rename_is_revoked_and_is_no_drift(
    world: DatabaseWorkerWorld, declared: ObjectPrivileges, change: str, report_only: bool
) -> None:
    await world.hand.execute(
        "CREATE SCHEMA elsewhere; CREATE FUNCTION app.f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'"
    )
    declare(world, declared, report_only=report_only)
    async with world.working():
        await world.wait_settled()
        await hold(world, 1)
        await world.hand.execute(change)
        await hold(world, 0)
        result = await world.wait(lambda result: result.error is not None and "waiting for" in result.error.message)
        assert (result.drift_count, result.reported, result.last_drifts) == (0, (), ())
    assert await world.count_drifts() == 0
    assert find_told(world) == []


@pytest.mark.parametrize("grantable", [False, True])
async def test_what_others_grant_with_a_rename_is_drift(world: DatabaseWorkerWorld, grantable: bool) -> None:
    declare(world, TABLE)
    granted = "SELECT ON app.renamed TO {} WITH GRANT OPTION" if grantable else "DELETE ON app.renamed TO {}"
    async with world.working():
        await world.wait_settled()
        alice = await asyncpg.connect(world.server.dsn(database=world.database), user=world.alice, password="a")
        await alice.execute(f"ALTER TABLE app.orders RENAME TO renamed; GRANT {granted.format(world.role)}")
        await hold(world, 0)
        result = await world.wait(lambda result: result.drift_count == 1)
        await alice.close()
        (drift,) = result.last_drifts
        words = f"{'SELECT' if grantable else 'DELETE'} on table app.renamed was granted"
        assert (drift.words, drift.by.login) == ((words,), world.alice)
        assert len(find_told(world)) == 1
    assert await world.count_drifts() == 1


async def test_what_others_grant_before_or_after_a_rename_is_drift(world: DatabaseWorkerWorld) -> None:
    declare(world, TABLE)
    grant = f"GRANT SELECT ON app.{{}} TO {world.role}"
    async with world.working():
        await world.wait_settled()
        await world.hand.execute("ALTER TABLE app.orders RENAME TO renamed")
        await hold(world, 0)
        for count, change in enumerate(
            (grant.format("renamed"), f"{grant.format('items')}; ALTER TABLE app.items RENAME TO more"), 1
        ):
            await world.hand.execute(change)
            await world.wait(lambda result, count=count: result.drift_count == count)  # type: ignore[misc]
            await hold(world, 0)


async def test_what_a_delegate_granted_before_a_rename_is_drift(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(
        f"GRANT SELECT ON app.orders TO {world.other} WITH GRANT OPTION; GRANT USAGE ON SCHEMA app TO {world.other};"
        f"SET ROLE {world.other}; GRANT SELECT ON app.orders TO {world.role}; RESET ROLE"
    )
    declare(world, TABLE)
    async with world.working():
        await world.wait_settled()
        await hold(world, 1)
        await world.hand.execute("ALTER TABLE app.orders RENAME TO renamed")
        await hold(world, 0)
        await world.wait(lambda result: result.drift_count == 1)


async def test_what_cannot_be_revoked_at_once_after_a_rename_is_no_drift_later(world: DatabaseWorkerWorld) -> None:
    declare(world, TABLE)
    async with world.working() as worker:
        await world.wait_settled()
        world.suspended = True
        await world.hand.execute("ALTER TABLE app.orders RENAME TO renamed")
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.SUSPENDED)
        await world.hand.execute("ALTER TABLE app.renamed RENAME TO again")
        world.suspended = False
        worker.note_everything()
        await hold(world, 0)
        result = await world.wait(lambda result: isinstance(result.error, Waiting))
        assert result.drift_count == 0
        await world.hand.execute(f"GRANT SELECT ON app.again TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)


async def test_tables_that_change_places_are_never_contested(world: DatabaseWorkerWorld) -> None:
    declare(world, TABLE)
    swap = (
        "ALTER TABLE app.orders RENAME TO old; ALTER TABLE app.items RENAME TO orders;"
        "ALTER TABLE app.old RENAME TO items"
    )
    async with world.working() as worker:

        async def is_over() -> bool:
            return not worker.memory._new

        await world.wait_settled()
        for _ in range(LIMIT + 2):
            await world.hand.execute(swap)
            # of an object that is renamed twice during a round, it is not known what was granted when
            await world.wait_may("SELECT", "app.orders")
            await world.wait_may("SELECT", "app.items", expected=False)
            assert await reached(is_over, DEADLINE)
        result = await world.wait_settled()
    assert result.drift_count == 0
    assert find_told(world) == []


async def test_while_polling_where_nothing_is_stored_it_is_no_drift_either(world: DatabaseWorkerWorld) -> None:
    await world.poll_without_schema()
    declare(world, TABLE)
    async with world.working() as worker:
        await world.wait_settled()
        await hold(world, 1)
        await world.hand.execute("ALTER TABLE app.orders RENAME TO renamed; CREATE TABLE app.orders (id int)")
        await world.wait_may("SELECT", "app.renamed", expected=False)
        await world.wait_may("SELECT", "app.orders")
        result = await world.wait_settled()
        assert not worker.memory.drifts.take_unstored()
    assert result.drift_count == 0
    assert find_told(world) == []


async def test_whoever_renamed_while_no_controller_ran_is_not_said_to_have_granted(world: DatabaseWorkerWorld) -> None:
    declare(world, TABLE, COLUMN_OF_ITEMS)
    async with world.working():
        await world.wait_settled()
    alice = await asyncpg.connect(world.server.dsn(database=world.database), user=world.alice, password="a")
    await alice.execute("ALTER TABLE app.orders RENAME TO renamed; ALTER TABLE app.items RENAME COLUMN id TO key")
    await alice.close()
    async with world.working():
        await hold(world, 0)
        result = await world.wait(lambda result: result.drift_count > 0)
    assert [(drift.count, drift.by.login) for drift in result.last_drifts] == [(2, "")]
