"""A person approves reported drift of privileges: each database corrects exactly the drift that was shown, once."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.approval import APPROVE
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.test_privileges_keep import PrivilegePlace, make_place
from tests.acceptance.world import Json, Kube, running, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

REPORT = {"policy": "Report"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def place(lent_kube: Kube, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[PrivilegePlace]:
    async with make_place(lent_kube, postgres, tmp_path) as made:
        yield made


def digest_of(obj: Json) -> str:
    return str(obj.get("status", {}).get("approval", {}).get("digest", ""))


async def wait_offer(place: PrivilegePlace, other_than: str = "") -> Json:
    return await place.kube.wait_for("reader", lambda obj: digest_of(obj) not in ("", other_than), "an offer")


async def annotate(place: PrivilegePlace, value: str) -> None:
    await place.kube.patch("reader", {"metadata": {"annotations": {APPROVE: value}}})


async def drift(place: PrivilegePlace) -> None:
    """Makes all changes in one transaction, so that no offer contains only some of them."""
    await place.hand.execute(
        f"GRANT DELETE, UPDATE (id) ON app.orders TO {place.reader}; REVOKE SELECT ON app.orders FROM {place.reader}"
    )


async def test_an_approval_corrects_a_drift_once_even_after_a_kill(place: PrivilegePlace) -> None:
    async with running(place.controller()):
        await place.declare(place.reads(), drift=REPORT)
        await drift(place)
        obj = await wait_offer(place)
        (database,) = obj["status"]["approval"]["databases"]
        assert database["name"] == place.name
        assert set(database["changes"]) == {
            "DELETE on table app.orders was granted",
            "UPDATE on column app.orders.id was granted",
            "SELECT on table app.orders was revoked",
        }
        value = f"{digest_of(obj)}/ticket-7"
        await annotate(place, value)
        await place.wait_may("DELETE", "app.orders", expected=False)
        obj = await place.kube.wait_ready("reader")
        assert obj["status"]["approval"] == {"databases": [{"name": place.name, "handled": value}]}
        assert obj["status"]["driftCount"] == 1
        assert (
            await place.hand.fetchval("SELECT approve_handled FROM pgrole.applied WHERE approve_handled <> ''") == value
        )
        event = await place.kube.wait_event("DriftCorrected", about="reader")
        assert 'the approver\'s text "ticket-7" is unverified' in event["note"]
        await place.wait_may("SELECT", "app.orders")

        await drift(place)
        await place.kube.wait_for("reader", lambda obj: digest_of(obj) == value.partition("/")[0], "the same again")
        await anyio.sleep(1.0)
        await place.wait_may("DELETE", "app.orders")
    controller = place.controller()
    await controller.start()
    digest = value.partition("/")[0]
    await place.kube.wait_for("reader", lambda obj: digest_of(obj) == digest, "reported by the next")
    await anyio.sleep(1.0)
    await place.wait_may("DELETE", "app.orders")
    await annotate(place, f"{digest}/ticket-8")
    await place.wait_may("DELETE", "app.orders", expected=False)
    await controller.kill()
    await drift(place)
    async with running(place.controller()) as controller:
        await controller.wait_log("reason=DriftReported")  # as news, or in a status that already says so
        await wait_offer(place)
        await anyio.sleep(1.0)
        await place.wait_may("DELETE", "app.orders")


async def test_a_drift_not_shown_stays_while_the_approved_part_is_corrected(place: PrivilegePlace) -> None:
    """Role and databases are approved separately in one digest; each corrects only the drift that was shown."""
    async with running(place.controller()):
        await place.declare(place.reads(), drift=REPORT)
        await place.hand.execute(f"GRANT DELETE ON app.orders TO {place.reader}")
        before = digest_of(await wait_offer(place))
        await place.hand.execute(f"GRANT TRUNCATE ON app.orders TO {place.reader}")
        obj = await wait_offer(place, before)
        await annotate(place, f"{before}/late")
        await place.kube.wait_for("reader", lambda obj: says(obj, "DriftReported", APPROVE), "a mismatch")
        await place.wait_may("DELETE", "app.orders")
        assert "handled" not in obj["status"]["approval"]["databases"][0]

        before = digest_of(obj)
        await place.hand.execute(f"ALTER ROLE {place.reader} CREATEDB")
        both = digest_of(await wait_offer(place, before))
        assert both.endswith(f"+{before}")
        await place.hand.execute(f"ALTER ROLE {place.reader} CREATEROLE")
        await wait_offer(place, both)
        await annotate(place, f"{both}/1")
        await place.wait_may("DELETE", "app.orders", expected=False)
        await place.wait_may("TRUNCATE", "app.orders", expected=False)
        obj = await place.kube.wait_for("reader", lambda obj: says(obj, "DriftReported", APPROVE, "createdb"), "left")
        powers = await place.hand.fetchrow(
            "SELECT rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = $1", place.reader
        )
        assert tuple(powers or ()) == (True, True)
        await annotate(place, f"{digest_of(obj)}/2")
        await place.kube.wait_ready("reader")


async def test_approval_corrects_drift_of_default_privileges(place: PrivilegePlace) -> None:
    async with running(place.controller()):
        declared = {**place.reads(), "createdBy": [place.owner]}
        await place.declare(declared, drift=REPORT)
        await place.hand.execute(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {place.owner} IN SCHEMA app GRANT DELETE ON TABLES TO {place.reader}"
        )
        obj = await wait_offer(place)
        await annotate(place, f"{digest_of(obj)}/1")
        await place.kube.wait_ready("reader")
        entries = (
            "SELECT count(*) FROM pg_default_acl AS d, aclexplode(d.defaclacl) AS a WHERE a.privilege_type = 'DELETE'"
        )
        entries += f" AND a.grantee = '{place.reader}'::regrole"
        assert await place.hand.fetchval(entries) == 0
