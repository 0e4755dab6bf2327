"""A role that an object may adopt is compared in its databases, and nothing is ever written for it."""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
    Takeover,
)
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, POLICY, SERVER, WRITE, DatabaseWorkerWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Everything that a round could write for the role with oid $1.
STATE = """
SELECT concat_ws('|', c.relname, c.xmin, c.relacl) FROM pg_class AS c WHERE c.oid = 'app.items'::regclass
UNION ALL SELECT concat_ws('|', a.attname, a.xmin, a.attacl) FROM pg_attribute AS a
WHERE a.attrelid = 'app.items'::regclass
UNION ALL SELECT concat_ws('|', n.nspname, n.xmin, n.nspacl) FROM pg_namespace AS n WHERE n.nspname = 'app'
UNION ALL SELECT concat_ws('|', 'default', d.xmin, d.defaclacl) FROM pg_default_acl AS d
UNION ALL SELECT concat_ws('|', 'applied', a.xmin, a.digest) FROM pgrole.applied AS a WHERE a.role_oid = $1
UNION ALL SELECT concat_ws('|', 'history', h.id) FROM pgrole.drift_history AS h WHERE h.role = $1::regrole::name::text
ORDER BY 1
"""


def publish(world: DatabaseWorkerWorld, policy: PrivilegePolicy = POLICY) -> Grantee:
    adoptee = replace(world.declare(WRITE), adoptee=Takeover.NEW, policy=policy)
    world.grantees.publish(SERVER, adoptee)
    return adoptee


async def wait_revoked(world: DatabaseWorkerWorld, *revoked: str) -> PrivilegeResult:
    return await world.wait(lambda one: one.adoption is not None and one.adoption.revoked == revoked)


async def read_state(world: DatabaseWorkerWorld) -> list[str]:
    return [row[0] for row in await world.hand.fetch(STATE, world.oid)]


@pytest.mark.parametrize("mode", [DatabaseMode.EVENTS, DatabaseMode.POLL])
async def test_it_is_compared_after_each_change_and_nothing_is_written(
    world: DatabaseWorkerWorld, mode: DatabaseMode
) -> None:
    databases = world.config.databases
    assert databases is not None
    world.config = replace(world.config, interval=0.1, databases=replace(databases, detection=mode))
    await world.hand.execute(
        f"GRANT TRUNCATE ON app.items TO {world.role}; GRANT TRUNCATE ON app.orders TO {world.other};"
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT TRUNCATE ON TABLES TO {world.role}"
    )
    user = await world.hand.fetchval("SELECT current_user")
    future, items = f"TRUNCATE on future tables in schema app created by {user}", "TRUNCATE on table app.items"
    before = await read_state(world)
    publish(world)
    orders = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}))
    declared = {world.database: DatabasePrivileges(world.database, objects=(orders,))}
    world.grantees.publish(
        SERVER, Grantee(Key("shop", "other"), "uid-2", 1, world.other, world.other_oid, declared, policy=POLICY)
    )
    async with world.working() as worker:
        await wait_revoked(world, future, items)
        assert worker.mode is mode
        await world.wait_may("TRUNCATE", "app.orders", expected=False, role=world.other)
        await world.hand.execute(f"GRANT REFERENCES, DELETE ON app.orders TO {world.role}")
        await wait_revoked(world, "REFERENCES on table app.orders", future, items)
        await world.hand.execute(f"REVOKE REFERENCES ON app.orders FROM {world.role}")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.other}")
        await wait_revoked(world, future, items)
        await world.wait_may("UPDATE", "app.orders", expected=False, role=world.other)
        worker.note_everything()
        await world.hand.execute(f"GRANT TRIGGER ON app.orders TO {world.role}")
        result = await wait_revoked(world, "TRIGGER on table app.orders", future, items)
    assert await read_state(world) == before
    assert await world.may("DELETE", "app.orders")
    assert not await world.may("SELECT", "app.orders")
    assert (result.drift_count, result.last_drifts, result.reported, result.confirmed) == (0, (), (), False)
    assert world.news() == []


async def test_what_its_object_could_not_declare_is_found_until_it_is_revoked(world: DatabaseWorkerWorld) -> None:
    server = f"{world.database}_wrapper"
    await world.hand.execute(
        f"CREATE FOREIGN DATA WRAPPER {server}; GRANT USAGE ON FOREIGN DATA WRAPPER {server} TO {world.role};"
        f"GRANT DELETE ON app.orders TO {world.role}; GRANT UPDATE (id) ON app.items TO {world.role} WITH GRANT OPTION"
    )
    publish(world, replace(POLICY, rules=(PrivilegeRule(privileges=frozenset({"SELECT", "UPDATE"})),)))
    wrapper, option = f"USAGE on foreign data wrapper {server}", "grant option for UPDATE on column app.items.id"
    async with world.working():
        await world.wait(lambda one: one.adoption is not None and one.adoption.beyond_count == 3)
        await world.hand.execute(f"REVOKE DELETE ON app.orders FROM {world.role}")
        await world.wait(lambda one: one.adoption is not None and one.adoption.beyond == (wrapper, option))
        await world.hand.execute(
            f"REVOKE USAGE ON FOREIGN DATA WRAPPER {server} FROM {world.role};"
            f"REVOKE GRANT OPTION FOR UPDATE (id) ON app.items FROM {world.role}"
        )
        await world.wait(lambda one: one.adoption is not None and one.adoption.beyond_count == 0)


async def test_on_what_its_namespace_or_postgresql_owns_it_may_hold_what_no_rule_allows(
    world: DatabaseWorkerWorld,
) -> None:
    await world.hand.execute(
        f"ALTER TABLE app.items OWNER TO {world.other}; GRANT DELETE ON app.items, app.orders TO {world.role};"
        f"GRANT USAGE ON TYPE text TO {world.role}"
    )
    adoptee = publish(world, replace(POLICY, rules=(PrivilegeRule(databases=("lake",)),)))
    world.grantees.publish(SERVER, replace(adoptee, owned=frozenset({world.other_oid})))
    async with world.working():
        result = await world.wait(lambda one: one.adoption is not None)
    assert result.adoption is not None
    assert result.adoption.beyond == ("DELETE on table app.orders",)


async def test_once_its_object_owns_it_privileges_are_enforced_and_never_before(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(f"GRANT TRUNCATE ON app.items TO {world.role}")
    adoptee = publish(world)
    async with world.working():
        await wait_revoked(world, "TRUNCATE on table app.items")
        world.grantees.publish(SERVER, replace(adoptee, adoptee=None))
        await world.wait_may("TRUNCATE", "app.items", expected=False)
        result = await world.wait_settled()
        assert result.adoption is None
        await world.hand.execute(f"GRANT TRUNCATE ON app.items TO {world.role}")
        await world.wait_may("TRUNCATE", "app.items", expected=False)
        world.grantees.publish(SERVER, adoptee)
        await wait_revoked(world)
        await world.hand.execute(f"GRANT TRUNCATE ON app.items TO {world.role}")
        await wait_revoked(world, "TRUNCATE on table app.items")
    assert await world.may("TRUNCATE", "app.items")


async def test_an_adoptee_that_cannot_be_compared_delays_no_other_role(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr("pgrole_controller.core.privileges.adoption_findings.find_for_adoption", fail)
    publish(world)
    other = world.declare_other(WRITE)
    async with world.working():
        result = await world.wait(lambda one: one.error is not None)
        await world.wait_may("DELETE", "app.orders", role=other)
    assert result.error is not None
    assert "RuntimeError" in result.error.message
    assert result.adoption is None


async def test_many_are_compared_in_several_rounds(world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgrole_controller.controller.privileges.privilege_round._MOST_ADOPTEES", 2)
    monkeypatch.setattr("pgrole_controller.controller.privileges.privilege_round._ADOPTEE_SECONDS", 0.0)
    one = replace(world.declare(WRITE), adoptee=Takeover.NEW)
    keys = [Key("shop", f"adoptee{number}") for number in range(5)]
    for key in keys:
        world.grantees.publish(SERVER, replace(one, key=key))
    world.grantees.withdraw(SERVER, one.key)

    async def have(*revoked: str) -> None:
        async def is_so() -> bool:
            results = [world.grantees.results(SERVER, key).get(world.database) for key in keys]
            return all(found and found.adoption and found.adoption.revoked == revoked for found in results)

        assert await reached(is_so, DEADLINE)

    async with world.working() as worker:
        await have()
        await world.hand.execute(f"GRANT TRUNCATE ON app.orders TO {world.role}")
        await have("TRUNCATE on table app.orders")
        world.grantees.withdraw_all(SERVER)
        worker.note_everything()
        world.declare_other(WRITE)
        await world.wait_may("DELETE", "app.orders", role=world.other)
