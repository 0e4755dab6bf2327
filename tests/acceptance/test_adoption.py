"""An existing role is taken over only with privileges that its object could have declared, in every listed database."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.test_privileges_keep import PrivilegePlace, make_place
from tests.acceptance.world import PATIENCE, Kube, running, says
from tests.servers import Servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def place(lent_kube: Kube, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[PrivilegePlace]:
    """Table hr.people belongs to no role of the namespace; TRIGGER there is beyond the policy."""
    async with make_place(lent_kube, postgres, tmp_path) as made:
        await made.hand.execute(f"CREATE SCHEMA hr; CREATE TABLE hr.people (id int); CREATE ROLE {made.name}_old")
        yield made
        await made.hand.execute(f"DROP OWNED BY {made.name}_old")


async def may(place: PrivilegePlace, privilege: str, table: str) -> bool:
    query = "SELECT has_table_privilege($1, $2, $3)"
    return bool(await place.hand.fetchval(query, f"{place.name}_old", table, privilege))


async def can_login(place: PrivilegePlace) -> bool:
    query = "SELECT rolcanlogin FROM pg_roles WHERE rolname = $1"
    return bool(await place.hand.fetchval(query, f"{place.name}_old"))


async def test_what_it_holds_is_listed_then_denied_and_at_last_revoked(place: PrivilegePlace) -> None:
    kube, hand, old = place.kube, place.hand, f"{place.name}_old"
    orders = f"TRUNCATE on table app.orders (database {place.name})"
    people = f"TRIGGER on table hr.people (database {place.name})"
    async with running(place.controller()):
        await place.declare(place.reads())
        await hand.execute(f"GRANT TRUNCATE ON app.orders TO {old}; GRANT TRIGGER ON hr.people TO {old}")
        await kube.apply("old", name=old, login=True, privileges=[place.reads()])
        listed = f"adoption would change login, and would revoke {people}, {orders}. To take"
        await kube.wait_for("old", lambda obj: says(obj, "RoleExists", listed), "listed")
        await hand.execute(f"GRANT DELETE ON app.orders TO {old}; REVOKE TRUNCATE ON app.orders FROM {old}")
        listed = f"would revoke DELETE on table app.orders (database {place.name}), {people}. To take"
        await kube.wait_for("old", lambda obj: says(obj, "RoleExists", listed), "the list follows")

        await kube.apply("old", name=old, login=True, privileges=[place.reads()], adopt=True)
        denied = f'adoption is denied: role "{old}" has privileges that this object could not declare ({people}): ask'
        await kube.wait_for("old", lambda obj: says(obj, "NotAllowed", denied), "denied")
        assert not await can_login(place)
        assert await may(place, "DELETE", "app.orders")
        assert not await may(place, "SELECT", "app.orders")
        assert not await hand.fetchval("SELECT count(*) FROM pgrole.applied WHERE role_name = $1", old)

        await hand.execute(f"REVOKE TRIGGER ON hr.people FROM {old}")
        await kube.wait_ready("old")
        assert await can_login(place)
        assert await may(place, "SELECT", "app.orders")
        assert not await may(place, "DELETE", "app.orders")
        await kube.wait_event("RoleAdopted", about="old")


async def test_whoever_grants_a_role_something_does_not_decide_which_object_adopts_it(place: PrivilegePlace) -> None:
    kube, hand, old = place.kube, place.hand, f"{place.name}_old"
    for name in ("one", "two"):
        await kube.apply(name, name=old, suspend=True)
    objects = [obj["metadata"] for obj in await kube.objects() if obj["spec"].get("name") == old]
    objects.sort(key=lambda metadata: (metadata["creationTimestamp"], metadata["uid"]))
    older, younger = (metadata["name"] for metadata in objects)
    async with running(place.controller()):
        await place.declare(place.reads())
        await hand.execute(f"GRANT TRIGGER ON hr.people TO {old}")
        await kube.apply(older, name=old, adopt=True, privileges=[place.reads()])
        await kube.wait_for(older, lambda obj: says(obj, "NotAllowed", "could not declare"), "denied")
        await kube.apply(younger, name=old, adopt=True, login=True)
        await kube.wait_reason(younger, "Conflict")
        assert not await can_login(place)
        await hand.execute(f"REVOKE TRIGGER ON hr.people FROM {old}")
        await kube.wait_ready(older)


@pytest.mark.slow
async def test_a_listed_database_that_cannot_be_reached_is_waited_for_and_named(place: PrivilegePlace) -> None:
    kube, old, lake = place.kube, f"{place.name}_old", f"{place.name}_lake"
    home = await asyncpg.connect(place.postgres.dsn())
    await home.execute(f"CREATE DATABASE {lake}")
    await home.execute(f"GRANT TEMPORARY ON DATABASE {lake} TO {old}; ALTER DATABASE {lake} ALLOW_CONNECTIONS false")
    privileges = [place.reads(), {"database": lake, "onDatabase": ["TEMPORARY"]}]
    async with running(place.controller()):
        await place.declare(place.reads())
        await kube.apply("old", name=old, login=True, privileges=privileges, adopt=True)
        waits = f'adoption waits for database "{lake}", in which role "{old}" has privileges: '
        await kube.wait_for("old", lambda obj: says(obj, "Progressing", waits, "does not accept"), "waits")
        assert not await can_login(place)
        assert not await may(place, "SELECT", "app.orders")
        await home.execute(f"ALTER DATABASE {lake} ALLOW_CONNECTIONS true")
        await kube.wait_ready("old")
        assert await may(place, "SELECT", "app.orders")
    await home.execute(f"DROP DATABASE {lake} WITH (FORCE)")
    await home.close()


async def test_a_retained_role_that_others_gave_more_is_not_taken_back(place: PrivilegePlace) -> None:
    kube, hand, old = place.kube, place.hand, f"{place.name}_old"
    spec = {"name": old, "login": True, "privileges": [place.reads()]}
    home = await asyncpg.connect(place.postgres.dsn())

    async def retain() -> None:
        await kube.delete("old")
        await kube.wait_gone("old")

        async def is_released() -> bool:
            query = "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = $1"
            return bool(await home.fetchval(query, old))

        assert await reached(is_released, PATIENCE)

    async with running(place.controller()):
        await place.declare(place.reads())
        await kube.apply("old", **spec, adopt=True)
        await kube.wait_ready("old")
        await retain()
        await hand.execute(f"GRANT TRIGGER ON hr.people TO {old}; ALTER ROLE {old} NOLOGIN")
        await kube.apply("old", **spec)
        denied = f'taking the role back is denied: role "{old}" has privileges that this object could not declare'
        await kube.wait_for("old", lambda obj: says(obj, "NotAllowed", denied), "denied")
        assert not await can_login(place)
        await hand.execute(f"REVOKE TRIGGER ON hr.people FROM {old}")
        await kube.wait_ready("old")
        assert await can_login(place)

        await retain()
        await hand.execute(f"GRANT DELETE ON app.orders TO {old}")
        await kube.apply("old", **spec)
        await kube.wait_ready("old")
        assert await may(place, "SELECT", "app.orders")
        assert not await may(place, "DELETE", "app.orders")
    await home.close()
