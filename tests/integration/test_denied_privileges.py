"""What others grant although policy denies it, with a real database: declaring it does not keep it."""

from dataclasses import replace

import pytest

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
)
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, POLICY, SERVER, DatabaseWorkerWorld

#: The namespace owns none of the tables.
DENYING = PrivilegePolicy(databases=("*",))


def declare(world: DatabaseWorkerWorld, *, report_only: bool = False, policy: PrivilegePolicy = DENYING) -> Grantee:
    table = ObjectPrivileges(ObjectKind.TABLE, "app", ("*",), frozenset({"SELECT", "UPDATE"}))
    declared = {world.database: DatabasePrivileges(world.database, objects=(table,))}
    grantee = replace(world.declare(report_only=report_only), declared=declared, policy=policy)
    world.grantees.publish(SERVER, grantee)
    return grantee


def is_denied(result: PrivilegeResult) -> bool:
    return result.error is not None and result.error.reason is Reason.NOT_ALLOWED


async def test_what_others_grant_is_revoked_although_it_is_declared(world: DatabaseWorkerWorld) -> None:
    declare(world)
    async with world.working():
        await world.wait(is_denied)
        for count, privilege in enumerate(("SELECT", "UPDATE", "SELECT"), 1):
            await world.hand.execute(f"GRANT {privilege} ON app.orders TO {world.role} WITH GRANT OPTION")
            await world.wait_more_drifts(count - 1)
            assert not await world.may(privilege, "app.orders")
        await world.hand.execute(f"GRANT SELECT (id) ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.drift_count == 4)
    assert result.last_drifts[-1].words == ("SELECT on column app.orders.id was granted",)


async def test_under_report_it_is_reported_until_it_is_revoked(world: DatabaseWorkerWorld) -> None:
    declare(world, report_only=True)
    async with world.working() as worker:
        await world.wait(is_denied)
        await world.hand.execute(f"GRANT SELECT ON app.orders TO {world.role}")
        words = ("SELECT on table app.orders was granted",)
        await world.wait(lambda result: result.reported == words)
        await world.hand.execute(f"GRANT UPDATE ON app.items TO {world.role}")
        await world.wait(lambda result: len(result.reported) == 2)
        worker.note_everything()
        await world.hand.execute(f"REVOKE UPDATE ON app.items FROM {world.role}")
        await world.wait(lambda result: result.reported == words)
        assert await world.may("SELECT", "app.orders")


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_was_granted_before_the_policy_was_tightened_stays(
    world: DatabaseWorkerWorld, restarted: bool
) -> None:
    plain = declare(world, policy=POLICY)
    denied = replace(plain, policy=DENYING)
    async with world.working() as worker:
        await world.wait_settled()
        world.grantees.publish(SERVER, denied)
        await world.wait(is_denied)
        await world.hand.execute("CREATE TABLE app.others (id int)")
        if not restarted:
            worker.note_everything()
            await world.hand.execute(f"GRANT UPDATE ON app.others TO {world.role}")
            await world.wait(lambda result: result.drift_count == 1)
    async with world.working() as later:

        async def has_read() -> bool:
            return later.memory.is_applied(denied, world.database)

        assert await reached(has_read, DEADLINE)
        await world.hand.execute(f"GRANT SELECT ON app.others TO {world.role}")
        result = await world.wait(lambda result: result.drift_count == (1 if restarted else 2))
        assert await world.may("SELECT", "app.orders")
        assert await world.may("UPDATE", "app.items")
    assert result.reported == ()


async def test_what_was_granted_before_the_object_got_another_owner_stays(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(f"ALTER TABLE app.orders OWNER TO {world.other}")
    plain = declare(world)
    world.grantees.publish(SERVER, replace(plain, owned=frozenset({world.other_oid})))
    async with world.working() as worker:
        await world.wait_may("SELECT", "app.orders")
        await world.wait(is_denied)
        await world.hand.execute("ALTER TABLE app.orders OWNER TO CURRENT_USER")
        worker.note_everything()
        await world.hand.execute(f"GRANT SELECT ON app.items TO {world.role}")
        result = await world.wait(lambda result: result.drift_count == 1)
        assert await world.may("SELECT", "app.orders")
    assert result.last_drifts[-1].words == ("SELECT on table app.items was granted",)
