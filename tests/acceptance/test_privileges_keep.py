"""A role's privileges in a database stay as declared, whatever others grant and revoke there."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Json,
    Kube,
    condition,
    is_ready,
    remove,
    running,
    says,
)
from tests.servers import Servers

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@dataclass(frozen=True, slots=True)
class PrivilegePlace:
    """A namespace, a database with schema app, owned by a role of the same namespace, and a superuser's session."""

    kube: Kube
    postgres: PostgresServer
    folder: Path
    name: str
    hand: Connection

    @property
    def reader(self) -> str:
        return f"{self.name}_reader"

    @property
    def owner(self) -> str:
        return f"{self.name}_owner"

    def controller(self, **environment: str) -> Controller:
        self.folder.mkdir(exist_ok=True)
        detection = {"PGROLE_DATABASES_DETECTION": "Auto", **environment}
        folder = self.folder / secrets.token_hex(4)
        folder.mkdir()
        return Controller(
            self.kube.server, self.postgres.dsn(), folder, "--namespace", self.kube.namespace, **detection
        )

    async def declare(self, *privileges: Json, ready: bool = True, **spec: Any) -> Json:
        """Declares the owner of everything in the database, and the reader with these privileges."""
        await self.kube.apply("owner", name=self.owner)
        await self.kube.wait_ready("owner")
        await self.hand.execute(f"ALTER SCHEMA app OWNER TO {self.owner}; ALTER TABLE app.orders OWNER TO {self.owner}")
        obj = await self.kube.apply("reader", name=self.reader, privileges=list(privileges), **spec)
        return await self.kube.wait_ready("reader") if ready else obj

    def reads(self, database: str = "") -> Json:
        return {"database": database or self.name, "schemas": [{"name": "app", "access": ["Read"]}]}

    async def wait_may(self, privilege: str, table: str, *, expected: bool = True) -> None:
        async def is_so() -> bool:
            query = "SELECT has_table_privilege(oid, $2, $3) FROM pg_roles WHERE rolname = $1"
            return (await self.hand.fetchval(query, self.reader, table, privilege)) is expected

        if not await reached(is_so, PATIENCE):
            obj = await self.kube.get("reader")
            raise AssertionError(f"{privilege} on {table} did not become {expected}: {obj}")


@pytest_asyncio.fixture(loop_scope="session")
async def place(lent_kube: Kube, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[PrivilegePlace]:
    async with make_place(lent_kube, postgres, tmp_path) as made:
        yield made


@asynccontextmanager
async def make_place(kube: Kube, postgres: PostgresServer, folder: Path) -> AsyncIterator[PrivilegePlace]:
    name = f"n{secrets.token_hex(4)}"
    home = await asyncpg.connect(postgres.dsn())
    await home.execute(f"CREATE DATABASE {name}")
    hand = await asyncpg.connect(postgres.dsn(database=name))
    await hand.execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int, total int)")
    yield PrivilegePlace(kube, postgres, folder / "controllers", name, hand)
    await hand.close()
    await remove(kube)
    await home.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await home.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
    await home.close()


async def test_privileges_are_granted_repaired_extended_changed_and_revoked(place: PrivilegePlace) -> None:
    async with running(place.controller()) as controller:
        await place.declare(place.reads())
        await place.wait_may("SELECT", "app.orders")
        assert "detection=Events" in controller.log

        await place.hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
        await place.wait_may("DELETE", "app.orders", expected=False)
        event = await place.kube.wait_event("DriftCorrected", about="reader")
        assert f"DELETE on table app.orders (database {place.name}) was granted by postgres" in event["note"]
        assert event["note"].endswith("and revoked")

        await place.hand.execute(f"REVOKE SELECT ON app.orders FROM {place.reader}")
        await place.wait_may("SELECT", "app.orders")

        await place.hand.execute(f"SET ROLE {place.owner}; CREATE TABLE app.invoices (id int); RESET ROLE")
        await place.wait_may("SELECT", "app.invoices")
        event = await place.kube.wait_event("PrivilegesExtended", about="reader")
        assert "app.invoices" in event["note"]

        write = {"database": place.name, "schemas": [{"name": "app", "access": ["Write"], "except": ["invoices"]}]}
        await place.declare(write)
        await place.wait_may("DELETE", "app.orders")
        await place.wait_may("SELECT", "app.invoices", expected=False)

        await place.declare()
        await place.wait_may("SELECT", "app.orders", expected=False)
        obj = await place.kube.wait_ready("reader")
        assert obj["status"]["driftCount"] == 2

        await an_undeclared_grant_on_the_database_is_revoked(place)


async def an_undeclared_grant_on_the_database_is_revoked(place: PrivilegePlace) -> None:
    role = f"{place.name}_connects"
    await place.kube.apply("connects", name=role, privileges=[{"database": place.name, "onDatabase": ["CONNECT"]}])
    await place.kube.wait_ready("connects")
    await place.hand.execute(f"GRANT CREATE ON DATABASE {place.name} TO {role}")

    async def is_revoked() -> bool:
        return not await place.hand.fetchval(f"SELECT has_database_privilege('{role}', '{place.name}', 'CREATE')")

    assert await reached(is_revoked, PATIENCE)
    event = await place.kube.wait_event("DriftCorrected", about="connects")
    assert f"CREATE on database {place.name}" in event["note"]


async def test_while_the_object_is_refused_its_role_gains_nothing_and_loses_what_others_grant(
    place: PrivilegePlace,
) -> None:
    async with running(place.controller()):
        await place.declare(place.reads())
        await place.wait_may("SELECT", "app.orders")
        await place.kube.apply("reader", name=place.reader, privileges=[place.reads()], superuser=True)
        await place.kube.wait_for("reader", lambda obj: says(obj, "NotAllowed", "superuser"), "refused")
    async with running(place.controller()):
        await place.hand.execute(f"SET ROLE {place.owner}; CREATE TABLE app.late (id int); RESET ROLE")
        await place.hand.execute(f"REVOKE SELECT ON app.orders FROM {place.reader}")
        await place.hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
        await place.wait_may("DELETE", "app.orders", expected=False)
        for table in ("app.orders", "app.late"):
            await place.wait_may("SELECT", table, expected=False)
        await place.declare(place.reads())
        for table in ("app.orders", "app.late"):
            await place.wait_may("SELECT", table)
        obj = await place.kube.wait_ready("reader")
    assert obj["status"]["driftCount"] == 1


async def test_a_restart_changes_no_status(place: PrivilegePlace) -> None:
    async with running(place.controller()):
        before = await place.declare(place.reads())
    await anyio.sleep(1.1)  # times in conditions have whole seconds
    async with running(place.controller()):
        await place.hand.execute(f"GRANT UPDATE ON app.orders TO {place.reader}")
        await place.kube.wait_event("DriftCorrected", about="reader")
        after = await place.kube.wait_for("reader", lambda obj: obj["status"].get("driftCount") == 1, "a drift")
    assert condition(after, "Ready") == condition(before, "Ready")


async def test_a_missing_database_delays_no_other(place: PrivilegePlace) -> None:
    missing = f"{place.name}_later"
    async with running(place.controller()):
        await place.declare(place.reads(), place.reads(missing), ready=False)
        await place.wait_may("SELECT", "app.orders")
        obj = await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", missing), "pending")
        assert not is_ready(obj)
        await a_refusal_in_one_database_is_the_reason_although_another_is_missing(place, f"a{place.name}")
        await place.hand.execute(f"GRANT UPDATE ON app.orders TO {place.reader}")
        await place.wait_may("UPDATE", "app.orders", expected=False)
        await place.hand.execute(f"CREATE DATABASE {missing}")
        try:
            await place.kube.wait_for(
                "reader", lambda obj: says(obj, "PrivilegePending", "schema app"), "schema pending"
            )
            there = await asyncpg.connect(place.postgres.dsn(database=missing))
            await there.execute("CREATE SCHEMA app")
            await place.kube.wait_ready("reader")
            await there.close()
        finally:
            await place.hand.execute(f"DROP DATABASE {missing} WITH (FORCE)")


async def a_refusal_in_one_database_is_the_reason_although_another_is_missing(
    place: PrivilegePlace, missing: str
) -> None:
    """The missing one is before the other in order."""
    role = f"{place.name}_denied"
    denied = {"kind": "Table", "schema": "pgrole", "names": ["ddl_event"], "privileges": ["INSERT"]}
    await place.kube.apply(
        "denied", name=role, privileges=[{**place.reads(), "objects": [denied]}, place.reads(missing)]
    )
    obj = await place.kube.wait_for("denied", lambda obj: says(obj, "NotAllowed", "pgrole.ddl_event"), "refused")
    assert f'; spec.privileges: database "{missing}" does not exist yet' in condition(obj, "Ready")["message"]
    assert condition(obj, "Stalled")["reason"] == "NotAllowed"
    await place.kube.wait_event("NotAllowed", about="denied")

    async def may_select() -> bool:
        query = "SELECT has_table_privilege($1::name, 'app.orders', 'SELECT')"
        return bool(await place.hand.fetchval(query, role))

    assert await reached(may_select, PATIENCE)


async def _list_for_a_while(place: PrivilegePlace, database: str, reason: str) -> None:
    await place.declare(place.reads(), place.reads(database), ready=False)
    await place.kube.wait_for("reader", lambda obj: says(obj, reason, database), reason)
    await place.declare(place.reads())


async def test_a_database_that_was_never_served_is_forgotten_once_no_longer_listed(
    place: PrivilegePlace,
) -> None:
    closed, template = f"{place.name}_closed", f"{place.name}_template"
    await place.hand.execute(f"CREATE DATABASE {closed} ALLOW_CONNECTIONS false")
    await place.hand.execute(f"CREATE DATABASE {template} IS_TEMPLATE true")
    try:
        async with running(place.controller()):
            await place.declare(place.reads())
            for database, reason in (closed, "PrivilegePending"), (template, "NotAllowed"), ("template1", "NotAllowed"):
                await _list_for_a_while(place, database, reason)
            await place.hand.execute(f"CREATE DATABASE {template}_copy TEMPLATE {template}")
            await place.hand.execute(f"CREATE DATABASE {template}_other")
            await place.declare(place.reads(), place.reads(closed), deletionPolicy="Drop", ready=False)
            await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", closed), "closed")
            await place.kube.delete("reader")
            await place.kube.wait_gone("reader")
    finally:
        await place.hand.execute(f"ALTER DATABASE {template} IS_TEMPLATE false")
        for name in (closed, template, f"{template}_copy", f"{template}_other"):
            await place.hand.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def test_a_database_with_former_privileges_is_remembered_until_they_are_revoked_by_hand(
    place: PrivilegePlace,
) -> None:
    closed = f"{place.name}_closed"
    await place.hand.execute(f"CREATE DATABASE {closed}")
    there = await asyncpg.connect(place.postgres.dsn(database=closed))
    try:
        async with running(place.controller()):
            await place.declare(place.reads(), {"database": closed, "onDatabase": ["CONNECT"]})
            await place.hand.execute(f"ALTER DATABASE {closed} ALLOW_CONNECTIONS false")
            await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", closed), "closed")
            await place.declare(place.reads(), ready=False)
            await place.kube.wait_for(
                "reader", lambda obj: says(obj, "PrivilegePending", "revoke them by hand"), "reported"
            )
            await there.execute(f"REVOKE CONNECT ON DATABASE {closed} FROM {place.reader}")
            await place.kube.wait_ready("reader")
    finally:
        await there.close()
        await place.hand.execute(f"DROP DATABASE {closed} WITH (FORCE)")
