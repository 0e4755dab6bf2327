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

#: Seconds after the changed declaration at which the controller is killed.
KILLED_AFTER = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)
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


async def change_by_hand(place: PrivilegePlace, statement: str) -> None:
    """Executes GRANT or REVOKE, again as long as a killed controller's session still changes the same ACL."""

    async def is_done() -> bool:
        try:
            await place.hand.execute(statement)
        except asyncpg.InternalServerError as error:
            if "tuple concurrently updated" not in str(error):
                raise
            return False
        return True

    assert await reached(is_done, PATIENCE)


async def let_a_round_pass(place: PrivilegePlace) -> None:
    """Waits until the database's worker has repaired the drift of another role, and so read what came before it."""
    await place.hand.execute(f"GRANT REFERENCES ON app.orders TO {place.name}_other")
    await wait_may(place, f"{place.name}_other", "REFERENCES", "app.orders", expected=False)


async def test_report_ignore_suspend_adopt_and_deletion_policies_apply_to_privileges(place: PrivilegePlace) -> None:
    kube, hand, name = place.kube, place.hand, place.name
    async with running(place.controller()):
        await place.declare(place.reads())
        await kube.apply("other", name=f"{name}_other", privileges=[place.reads()])
        await kube.wait_ready("other")

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
        await let_a_round_pass(place)
        await place.wait_may("DELETE", "app.orders")
        await place.wait_may("INSERT", "app.orders", expected=False)

        # suspended: nothing is changed; afterwards everything is
        await place.declare(place.reads(), suspend=True, ready=False)
        await kube.wait_reason("reader", "Suspended")
        await hand.execute(f"GRANT TRUNCATE ON app.orders TO {place.reader}")
        await let_a_round_pass(place)
        await place.wait_may("TRUNCATE", "app.orders")
        await place.declare(place.reads())
        for privilege in ("UPDATE", "DELETE", "TRUNCATE"):
            await place.wait_may(privilege, "app.orders", expected=False)
        await place.wait_may("SELECT", "app.more")

        # adopted, with undeclared privileges
        old = f"{name}_old"
        await hand.execute(f"CREATE ROLE {old}; GRANT INSERT ON app.orders TO {old}")
        await kube.apply("old", name=old, privileges=[place.reads()])
        await kube.wait_for("old", lambda obj: says(obj, "RoleExists", "would revoke INSERT"), "refused")
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

        await a_dropped_role_is_reported_under_report(place)
        await a_corrected_drift_of_the_role_is_not_reported_with_that_of_its_privileges(place)


async def a_dropped_role_is_reported_under_report(place: PrivilegePlace) -> None:
    kube, role = place.kube, f"{place.name}_dropped"
    await kube.apply("dropped", name=role, privileges=[place.reads()], drift={"policy": "Report"})
    await kube.wait_ready("dropped")
    await place.hand.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await kube.wait_for("dropped", lambda obj: says(obj, "DriftReported", "Report: role"), "reported")
    await kube.patch("dropped", {"spec": {"drift": {"policy": "Correct"}}})
    await kube.wait_ready("dropped")
    await wait_may(place, role, "SELECT", "app.orders", expected=True)


async def a_corrected_drift_of_the_role_is_not_reported_with_that_of_its_privileges(place: PrivilegePlace) -> None:
    kube, hand, role = place.kube, place.hand, f"{place.name}_mixed"
    await kube.apply("mixed", name=role, privileges=[place.reads()])
    await kube.wait_ready("mixed")
    await hand.execute(f"CREATE TYPE app.mood AS ENUM ('good'); GRANT USAGE ON TYPE app.mood TO {role}")
    await kube.wait_reason("mixed", "DriftReported")
    await hand.execute(f"ALTER ROLE {role} CONNECTION LIMIT 7")
    obj = await kube.wait_for("mixed", lambda obj: obj["status"].get("driftCount") == 1, "corrected")
    assert says(obj, "DriftReported", "app.mood")
    await kube.apply("mixed", name=role, privileges=[place.reads()], connectionLimit=9)
    obj = await kube.wait_for("mixed", lambda obj: obj["status"]["observedGeneration"] == 2, "changed")
    told = sorted((one["fields"], one["corrected"]) for one in obj["status"]["driftHistory"])
    assert told == [(["connectionLimit"], True), (["privileges"], False)]


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


async def test_a_database_whose_drop_was_interrupted_blocks_the_drop_of_a_role_until_it_is_dropped(
    place: PrivilegePlace,
) -> None:
    kube, name = place.kube, place.name
    home = await asyncpg.connect(place.postgres.dsn())
    async with running(place.controller()):
        await kube.apply("reader", name=place.reader, privileges=[place.reads()], deletionPolicy="Drop")
        await kube.wait_ready("reader")
        await place.hand.close()
        await home.execute(f"UPDATE pg_database SET datconnlimit = -2 WHERE datname = '{name}'")
        await home.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        told = "run DROP DATABASE again"
        await kube.wait_for("reader", lambda obj: says(obj, "PrivilegePending", told), "interrupted")
        await kube.delete("reader")
        obj = await kube.wait_for("reader", lambda obj: says(obj, "DropBlocked", told), "blocked")
        assert "connect there" not in condition(obj, "Ready")["message"]
        await home.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await kube.wait_gone("reader")
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


async def test_after_a_restart_roles_are_dropped_restored_and_kept_where_only_status_holds_their_claims(
    place: PrivilegePlace,
) -> None:
    """Object `deleted` is deleted while no controller runs; the role of `blocked` has lost its login, since sessions
    block its drop; drift of `reader` is only reported.
    """
    kube, hand, name = place.kube, place.hand, place.name
    deleted, blocked = f"{name}_deleted", f"{name}_blocked"
    home = await asyncpg.connect(place.postgres.dsn())
    may = f"SELECT rolcanlogin FROM pg_roles WHERE rolname = '{blocked}'"
    async with running(place.controller(PGROLE_INSTALL="false")) as controller:
        await place.declare(place.reads(), drift={"policy": "Report"})
        await kube.apply("deleted", name=deleted, privileges=[place.reads()], deletionPolicy="Drop")
        await kube.apply("blocked", name=blocked, login=True, deletionPolicy="Drop")
        await kube.wait_all_ready()
        assert "claims=Status" in controller.log
        await hand.execute(f"ALTER ROLE {place.reader} CREATEDB")
        await kube.wait_reason("reader", "DriftReported")
        await home.execute(f"ALTER ROLE {blocked} PASSWORD 'secret'")
        session = await asyncpg.connect(place.postgres.dsn(blocked, password="secret", database=name))
        await kube.delete("blocked")
        await kube.wait_for("blocked", lambda obj: says(obj, "DropBlocked", "open sessions"), "blocked")
        assert not await home.fetchval(may)
    await kube.delete("deleted")
    async with running(place.controller(PGROLE_INSTALL="false")) as controller:
        await kube.wait_gone("deleted")
        assert not await hand.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", deleted)

        await kube.wait_for("blocked", lambda obj: says(obj, "DropBlocked", "open sessions"), "blocked again")
        await kube.patch("blocked", {"spec": {"deletionPolicy": "Retain"}})
        await kube.wait_gone("blocked")
        assert await home.fetchval(may)

        await controller.wait_log("session with a database begins")
        await hand.execute(f"CREATE TABLE app.more (id int); ALTER TABLE app.more OWNER TO {place.owner}")
        await place.wait_may("SELECT", "app.more")
        obj = await kube.wait_reason("reader", "DriftReported")
        assert obj["status"]["lastDrift"]["fields"] == ["createdb"]
    await session.close()
    await home.execute(f"DROP ROLE {blocked}")
    await home.close()


async def test_a_controller_killed_at_any_moment_revokes_former_privileges_after_a_restart(
    place: PrivilegePlace,
) -> None:
    late = ""
    controller = place.controller()
    await controller.start()
    await place.declare(place.reads())
    for number, seconds in enumerate(KILLED_AFTER):
        await place.declare(writes(place))
        await place.wait_may("DELETE", "app.orders")
        await place.hand.execute(f"GRANT TRUNCATE ON app.orders TO {place.reader}")
        await place.kube.apply("reader", name=place.reader, privileges=[place.reads()])
        await anyio.sleep(seconds)
        await controller.kill()
        if number % 2:
            await place.kube.apply("reader", name=place.reader, privileges=[])
        else:
            late = f"app.late_{number}"
            await change_by_hand(place, f"GRANT REFERENCES ON app.orders TO {place.reader}")
            await place.hand.execute(f"CREATE TABLE {late} (id int); ALTER TABLE {late} OWNER TO {place.owner}")
        controller = place.controller()
        await controller.start()
        if number % 2:  # only former declared privileges are revoked in a database no longer listed
            await change_by_hand(place, f"REVOKE TRUNCATE ON app.orders FROM {place.reader}")
        await place.wait_may("TRUNCATE", "app.orders", expected=False)
        await place.wait_may("DELETE", "app.orders", expected=False)
        await place.wait_may("SELECT", "app.orders", expected=not number % 2)
        if not number % 2:  # what changed while no controller ran
            await place.wait_may("REFERENCES", "app.orders", expected=False)
            await place.wait_may("SELECT", late)
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
        await other.kube.wait_ready("theirs")
        await wait_may(place, theirs, "SELECT", "app.orders", expected=True)
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
        await place.hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
        generation = (await kube.patch("reader", {"spec": {"comment": "changed"}}))["metadata"]["generation"]
        await kube.wait_for(
            "reader",
            lambda obj: obj["status"]["observedGeneration"] == generation and says(obj, "Suspended", '"postgres"'),
            "suspended still",
        )
        for privilege in ("UPDATE", "DELETE"):
            await place.wait_may(privilege, "app.orders")
        await home.execute("ALTER DATABASE postgres RESET pgrole.suspend")
        for privilege in ("UPDATE", "DELETE"):
            await place.wait_may(privilege, "app.orders", expected=False)
        await kube.wait_ready("reader")
    await home.execute(f"DROP DATABASE {other} WITH (FORCE)")
    await home.close()
