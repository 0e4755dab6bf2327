"""Privileges end up as declared, whatever is killed, replaced, denied or contested meanwhile."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, role_sql
from tests.acceptance.replicas import replicas
from tests.acceptance.test_privileges_keep import PrivilegePlace, make_place
from tests.acceptance.world import PATIENCE, Controller, Json, Kube, Stage, condition, make_kube, running, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

KILLS = 12
_AUTO = {"PGROLE_DATABASES_DETECTION": "Auto"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def place(lent_kube: Kube, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[PrivilegePlace]:
    async with make_place(lent_kube, postgres, tmp_path) as made:
        yield made


def writes(place: PrivilegePlace) -> Json:
    return {"database": place.name, "schemas": [{"name": "app", "access": ["Write"]}]}


async def wait_may(place: PrivilegePlace, role: str, privilege: str, table: str, *, expected: bool) -> None:
    query = "SELECT has_table_privilege(oid, $2, $3) FROM pg_roles WHERE rolname = $1"

    async def is_so() -> bool:
        return (await place.hand.fetchval(query, role, table, privilege)) is expected

    assert await reached(is_so, PATIENCE), (role, privilege, table, expected, await place.kube.objects())


async def test_report_ignore_suspend_adopt_and_deletion_policies_apply_to_privileges(place: PrivilegePlace) -> None:
    kube, hand, name = place.kube, place.hand, place.name
    async with running(place.controller()):
        await place.declare(place.reads())

        # reported, not repaired
        await place.declare(place.reads(), drift={"policy": "Report"})
        await hand.execute(f"GRANT UPDATE ON app.orders TO {place.reader}")
        obj = await kube.wait_reason("reader", "DriftReported")
        assert "UPDATE" in str(obj["status"]["lastDrift"])
        assert not obj["status"]["lastDrift"]["corrected"]
        assert condition(obj, "DriftDetected")["status"] == "True"
        await kube.wait_event("DriftReported", about="reader")
        await place.wait_may("UPDATE", "app.orders")

        # ignored, and so is a changed declaration
        await place.declare(place.reads(), drift={"ignore": ["privileges"]})
        await hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
        await hand.execute(f"CREATE TABLE app.more (id int); ALTER TABLE app.more OWNER TO {place.owner}")
        await place.declare(writes(place), drift={"ignore": ["privileges"]})
        await anyio.sleep(1.0)
        await place.wait_may("DELETE", "app.orders")
        await place.wait_may("INSERT", "app.orders", expected=False)

        # suspended: nothing is changed; afterwards everything is
        await place.declare(place.reads(), suspend=True, ready=False)
        await hand.execute(f"GRANT TRUNCATE ON app.orders TO {place.reader}")
        await anyio.sleep(1.0)
        await place.wait_may("TRUNCATE", "app.orders")
        await place.declare(place.reads())
        for privilege in ("UPDATE", "DELETE", "TRUNCATE"):
            await place.wait_may(privilege, "app.orders", expected=False)
        await place.wait_may("SELECT", "app.more")

        # adopted, with undeclared privileges
        old = f"{name}_old"
        await hand.execute(f"CREATE ROLE {old}; GRANT INSERT ON app.orders TO {old}")
        await kube.apply("old", name=old, privileges=[place.reads()])
        obj = await kube.wait_for("old", lambda obj: condition(obj, "Ready").get("status") == "False", "refused")
        assert "privileges" in condition(obj, "Ready")["message"]
        await wait_may(place, old, "INSERT", "app.orders", expected=True)
        await kube.apply("old", name=old, privileges=[place.reads()], adopt=True)
        await kube.wait_ready("old")
        await wait_may(place, old, "INSERT", "app.orders", expected=False)
        await wait_may(place, old, "SELECT", "app.orders", expected=True)

        # deleted: Retain leaves everything, Drop leaves nothing
        await kube.delete("old")
        await kube.wait_gone("old")
        await wait_may(place, old, "SELECT", "app.orders", expected=True)
        await place.declare(place.reads(), deletionPolicy="Drop")
        await kube.delete("reader")
        await kube.wait_gone("reader")
        await kube.wait_event("RoleDropped", about="reader")
        assert not await hand.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", place.reader)
        await hand.execute(f"DROP OWNED BY {old}; DROP ROLE {old}")


async def test_a_database_that_is_closed_renamed_or_dropped_is_reported_and_not_blocked(place: PrivilegePlace) -> None:
    """The controller is not informed beforehand, and must not block these statements."""
    name = place.name
    home = await asyncpg.connect(place.postgres.dsn())
    async with running(place.controller()):
        await place.declare(place.reads())
        await place.hand.close()
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", "does not accept"), "closed")

        async def is_renamed() -> bool:
            try:
                await home.execute(f"ALTER DATABASE {name} RENAME TO {name}_away")
            except asyncpg.ObjectInUseError:
                return False
            return True

        assert await reached(is_renamed, PATIENCE)
        await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", "does not exist"), "renamed")
        await home.execute(f"ALTER DATABASE {name}_away RENAME TO {name}")
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        began = anyio.current_time()
        await place.kube.wait_ready("reader")
        assert anyio.current_time() - began < 10.0
        # deleted while the database is closed: privileges there are revoked once it accepts connections again
        await place.kube.apply("second", name=f"{name}_second", privileges=[place.reads()], deletionPolicy="Drop")
        await place.kube.wait_ready("second")
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await place.kube.wait_for("second", lambda obj: says(obj, "PrivilegePending", "does not accept"), "closed")
        await place.kube.delete("second")
        await place.kube.wait_for("second", lambda obj: name in condition(obj, "Ready")["message"], "blocked")
        assert await home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", f"{name}_second")
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await place.kube.wait_gone("second")
        assert not await home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", f"{name}_second")
        await home.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await place.kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", "does not exist"), "dropped")
        # nothing is left to revoke
        await place.kube.apply("reader", name=place.reader, privileges=[place.reads()], deletionPolicy="Drop")
        await place.kube.wait_for("reader", lambda obj: bool(obj["metadata"].get("finalizers")), "finalizer")
        await place.kube.delete("reader")
        await place.kube.wait_gone("reader")
        assert not await home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", place.reader)
    await home.close()


async def test_a_retained_role_is_left_by_an_object_that_was_deleted_before_it_took_the_role_back(
    place: PrivilegePlace,
) -> None:
    kube, name = place.kube, place.name
    home = await asyncpg.connect(place.postgres.dsn())
    ours = "SELECT FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'pgrole-controller %'"

    async def is_left() -> bool:
        return not await home.fetch(ours, name)

    async with running(place.controller()):
        await place.declare(place.reads())
        await kube.delete("reader")
        await kube.wait_gone("reader")
        assert await reached(is_left, PATIENCE)
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        spec = {"name": place.reader, "privileges": [place.reads()], "deletionPolicy": "Drop"}
        await kube.apply("reader", **spec, reassignOwnedTo=place.owner)
        await kube.wait_for("reader", lambda obj: says(obj, "Progressing", "taking the role back", name), "waits")
        await kube.delete("reader")
        await kube.wait_gone("reader")
        assert await home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", place.reader) == 1
        await home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await home.close()


async def test_a_role_that_was_deleted_while_no_controller_ran_is_dropped_where_only_status_holds_its_claim(
    place: PrivilegePlace,
) -> None:
    async with running(place.controller(PGROLE_INSTALL="false")) as controller:
        await place.declare(place.reads(), deletionPolicy="Drop")
        assert "claims=Status" in controller.log
    await place.kube.delete("reader")
    async with running(place.controller(PGROLE_INSTALL="false")):
        await place.kube.wait_gone("reader")
        assert not await place.hand.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", place.reader)


async def test_a_role_whose_claim_was_lost_is_dropped_by_an_object_that_was_deleted_meanwhile(
    place: PrivilegePlace,
) -> None:
    async with running(place.controller()):
        await place.declare(place.reads(), deletionPolicy="Drop")
    home = await asyncpg.connect(place.postgres.dsn())
    await home.execute("DROP SCHEMA pgrole CASCADE")
    await home.close()
    await place.kube.delete("reader")
    async with running(place.controller()):
        await place.kube.wait_gone("reader")
        assert not await place.hand.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", place.reader)


async def test_a_login_that_only_status_records_as_removed_is_given_back_after_a_restart(
    place: PrivilegePlace,
) -> None:
    kube, may = place.kube, f"SELECT rolcanlogin FROM pg_roles WHERE rolname = '{place.reader}'"
    home = await asyncpg.connect(place.postgres.dsn())
    async with running(place.controller(PGROLE_INSTALL="false")):
        await place.declare(login=True, deletionPolicy="Drop")
        await home.execute(f"ALTER ROLE {place.reader} PASSWORD 'secret'")
        session = await asyncpg.connect(place.postgres.dsn(place.reader, password="secret", database=place.name))
        await kube.delete("reader")
        await kube.wait_for("reader", lambda obj: says(obj, "DropBlocked", "open sessions"), "blocked")
        assert not await home.fetchval(may)
    async with running(place.controller(PGROLE_INSTALL="false")):
        await kube.wait_for("reader", lambda obj: says(obj, "DropBlocked", "open sessions"), "blocked again")
        await kube.patch("reader", {"spec": {"deletionPolicy": "Retain"}})
        await kube.wait_gone("reader")
        assert await home.fetchval(may)
    await session.close()
    await home.execute(f"DROP ROLE {place.reader}")
    await home.close()


async def test_reported_drift_of_a_role_whose_claim_was_lost_leaves_its_privileges_managed(
    place: PrivilegePlace,
) -> None:
    kube, hand = place.kube, place.hand
    async with running(place.controller(PGROLE_INSTALL="false")):
        await place.declare(place.reads(), drift={"policy": "Report"})
        await hand.execute(f"ALTER ROLE {place.reader} CREATEDB")
        await kube.wait_reason("reader", "DriftReported")
    async with running(place.controller(PGROLE_INSTALL="false")) as controller:
        await controller.wait_log("session with a database begins")
        await hand.execute(f"CREATE TABLE app.more (id int); ALTER TABLE app.more OWNER TO {place.owner}")
        await place.wait_may("SELECT", "app.more")
        obj = await kube.wait_reason("reader", "DriftReported")
        assert obj["status"]["lastDrift"]["fields"] == ["createdb"]


async def test_under_report_a_role_with_privileges_that_is_dropped_is_reported(place: PrivilegePlace) -> None:
    kube, hand = place.kube, place.hand
    async with running(place.controller()):
        await place.declare(place.reads(), drift={"policy": "Report"})
        await hand.execute(f"DROP OWNED BY {place.reader}; DROP ROLE {place.reader}")
        obj = await kube.wait_reason("reader", "DriftReported")
        assert "role" in condition(obj, "Ready")["message"]
        await kube.patch("reader", {"spec": {"drift": {"policy": "Correct"}}})
        await kube.wait_ready("reader")
        await place.wait_may("SELECT", "app.orders")


async def test_a_controller_killed_at_any_moment_revokes_former_privileges_after_a_restart(
    place: PrivilegePlace,
) -> None:
    controller = place.controller()
    await controller.start()
    await place.declare(place.reads())
    for number in range(KILLS):
        await place.declare(writes(place))
        await place.wait_may("DELETE", "app.orders")
        await place.hand.execute(f"GRANT TRUNCATE ON app.orders TO {place.reader}")
        await place.kube.apply("reader", name=place.reader, privileges=[place.reads()])
        await anyio.sleep(number * 0.01)
        await controller.kill()
        if number % 2:
            await place.kube.apply("reader", name=place.reader, privileges=[])
        controller = place.controller()
        await controller.start()
        if number % 2:  # only former declared privileges are revoked in a database no longer listed
            await place.hand.execute(f"REVOKE TRUNCATE ON app.orders FROM {place.reader}")
        await place.wait_may("TRUNCATE", "app.orders", expected=False)
        await place.wait_may("DELETE", "app.orders", expected=False)
        await place.wait_may("SELECT", "app.orders", expected=not number % 2)
        await place.kube.wait_ready("reader")
    assert await controller.stop() == 0


async def test_a_leader_paused_during_a_takeover_changes_nothing_after_it_resumes(
    place: PrivilegePlace, tmp_path: Path
) -> None:
    folder = tmp_path / "pair"
    folder.mkdir()
    stage = Stage(place.kube, place.postgres, folder)
    async with replicas(stage, "--databases-detection", "auto") as pair:
        await pair.start()
        await place.declare(place.reads())
        number = "SELECT max(number) FROM pgrole.leader"
        before = await place.hand.fetchval(number)
        pair.first.pause()
        try:
            await pair.second.leads(seconds=60.0)
            await place.hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
            await place.wait_may("DELETE", "app.orders", expected=False)
            assert await place.hand.fetchval(number) > before
            await place.declare(writes(place))
            await place.wait_may("DELETE", "app.orders")
            since, stood_by = pair.logged(), pair.first.stood_by
        finally:
            pair.first.resume()
        await pair.first.stands_by(stood_by + 1, seconds=60.0)
        await place.wait_may("DELETE", "app.orders")
        assert pair.first.changed(since)[0] == pair.first.changed(since)[1]


@asynccontextmanager
async def documented_role(place: PrivilegePlace) -> AsyncIterator[str]:
    """Creates the controller's role as in docs/privileges.md; yields its DSN."""
    home = await asyncpg.connect(place.postgres.dsn())
    version = home.get_server_version().major
    await home.execute(role_sql(version))
    await home.execute(f"GRANT CREATE ON DATABASE {place.name} TO {CONTROLLER_ROLE}")
    try:
        yield place.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD)
    finally:
        await place.hand.execute(f"DROP OWNED BY {CONTROLLER_ROLE} CASCADE")
        await home.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
        await home.execute(f"REASSIGN OWNED BY {CONTROLLER_ROLE} TO postgres; DROP OWNED BY {CONTROLLER_ROLE} CASCADE")
        await home.close()


async def test_a_controller_without_superuser_polls_and_names_the_grant_it_lacks(place: PrivilegePlace) -> None:
    async with documented_role(place) as dsn:
        folder = place.folder
        folder.mkdir()
        controller = Controller(
            place.kube.server, dsn, folder, "--namespace", place.kube.namespace, PGROLE_POLL_INTERVAL="200ms", **_AUTO
        )
        async with running(controller):
            await place.declare(place.reads(), ready=False)
            obj = await place.kube.wait_reason("reader", "DatabaseError")
            message = condition(obj, "Ready")["message"]
            found = re.search(r"A superuser can allow it: (GRANT .*)", message)
            assert found, message
            assert place.owner in found[1]
            await place.hand.execute(found[1])
            await place.kube.wait_ready("reader")
            await place.wait_may("SELECT", "app.orders")
            assert "detection=Poll" in controller.log
            await place.hand.execute(f"GRANT UPDATE ON app.orders TO {place.reader}")
            await place.wait_may("UPDATE", "app.orders", expected=False)
            await place.hand.execute(f"REVOKE SELECT ON app.orders FROM {place.reader}")
            await place.wait_may("SELECT", "app.orders")


async def test_two_clusters_repair_their_own_roles_in_one_database(
    place: PrivilegePlace, api_server: ApiServer
) -> None:
    async with (
        make_second(place, api_server) as other,
        running(place.controller(PGROLE_CLUSTER_ID="here")),
        running(other.controller(PGROLE_CLUSTER_ID="there")),
    ):
        await place.declare(place.reads())
        theirs = f"{place.name}_theirs"
        rule: dict[str, Any] = {"schemas": [{"name": "app", "access": ["Read"]}], "database": place.name}
        await other.kube.apply("theirs", name=theirs, privileges=[rule])
        # the default rule allows privileges only on objects of roles in the same namespace
        obj = await other.kube.wait_for("theirs", lambda obj: condition(obj, "Ready").get("status") == "False", "shown")
        assert "app" in condition(obj, "Ready")["message"]
        await other.kube.apply("same", name=place.reader, privileges=[])
        await other.kube.wait_reason("same", "ClaimedElsewhere")
        for _ in range(2):
            await place.hand.execute(f"GRANT UPDATE ON app.orders TO {place.reader}, {theirs}")
            await place.wait_may("UPDATE", "app.orders", expected=False)
            await wait_may(place, theirs, "UPDATE", "app.orders", expected=False)
        await place.kube.wait_ready("reader")


@asynccontextmanager
async def make_second(place: PrivilegePlace, api_server: ApiServer) -> AsyncIterator[PrivilegePlace]:
    kube = await make_kube(api_server)
    async with make_place(kube, place.postgres, place.folder.parent / "second") as other:
        (place.folder.parent / "second").mkdir(exist_ok=True)
        yield other


async def test_a_suspended_database_or_server_delays_no_other_and_is_served_again(place: PrivilegePlace) -> None:
    other, kube = f"{place.name}_other", place.kube
    home = await asyncpg.connect(place.postgres.dsn())
    await home.execute(f"CREATE DATABASE {other}")
    await home.execute(f"ALTER DATABASE {other} SET pgrole.suspend = on")
    grant = f"GRANT UPDATE ON app.orders TO {place.reader}"
    async with running(place.controller()):
        await place.declare(place.reads(), {"database": other, "onDatabase": ["TEMPORARY"]}, ready=False)
        await kube.wait_for("reader", lambda obj: says(obj, "Suspended", other), "suspended in one database")
        await place.hand.execute(grant)
        await place.wait_may("UPDATE", "app.orders", expected=False)
        await home.execute(f"ALTER DATABASE {other} RESET pgrole.suspend")
        await kube.wait_ready("reader")

        await home.execute("ALTER DATABASE postgres SET pgrole.suspend = on")
        await place.hand.execute(grant)
        await kube.wait_for("reader", lambda obj: says(obj, "Suspended", place.name), "suspended everywhere")
        await home.execute("ALTER DATABASE postgres RESET pgrole.suspend")
        await place.wait_may("UPDATE", "app.orders", expected=False)
        await kube.wait_ready("reader")
    await home.execute(f"DROP DATABASE {other} WITH (FORCE)")
    await home.close()


async def test_a_corrected_drift_of_the_role_is_not_reported_with_that_of_its_privileges(place: PrivilegePlace) -> None:
    kube, hand = place.kube, place.hand
    async with running(place.controller()):
        await place.declare(place.reads())
        await hand.execute(f"CREATE TYPE app.mood AS ENUM ('good'); GRANT USAGE ON TYPE app.mood TO {place.reader}")
        await kube.wait_reason("reader", "DriftReported")
        await hand.execute(f"ALTER ROLE {place.reader} CONNECTION LIMIT 7")
        obj = await kube.wait_for("reader", lambda obj: obj["status"].get("driftCount") == 1, "corrected")
        assert says(obj, "DriftReported", "app.mood")
        await place.declare(place.reads(), ready=False, connectionLimit=9)
        obj = await kube.wait_for("reader", lambda obj: obj["status"]["observedGeneration"] == 2, "changed")
    told = sorted((one["fields"], one["corrected"]) for one in obj["status"]["driftHistory"])
    assert told == [(["connectionLimit"], True), (["privileges"], False)]
