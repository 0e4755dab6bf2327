"""The controller repairs a role that someone else changed, and reports the drift on its object."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from pgrole_controller.core.contest import LIMIT
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.core.scram import verifies
from tests.acceptance.drifts import ATTRIBUTES, POWERFUL
from tests.acceptance.world import Controller, Database, Json, Kube, Stage, condition, is_ready, running, says

RoleRow = Mapping[str, Any]

#: Deadline for what should take seconds, on a busy machine.
ATTEMPTS = 10

#: A transaction that changes more than 100 roles notifies of all at once (sql/install/03_role_state.sql).
MANY = 101

DECLARED: dict[str, Any] = {
    "login": True,
    "connectionLimit": 7,
    "validUntil": "2031-01-01T00:00:00Z",
    "comment": "as declared",
}


@pytest.fixture
def role_name() -> str:
    return f"role_{secrets.token_hex(4)}"


def drifts(count: int) -> Callable[[Json], bool]:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def declare(kube: Kube, role_name: str, **spec: Any) -> Json:
    await kube.apply("app", name=role_name, **{**DECLARED, **spec})
    return await kube.wait_ready("app")


async def test_a_renamed_role_whose_name_is_taken_is_reported_and_left_unchanged(
    kube: Kube, database: Database, role_name: str
) -> None:
    await declare(kube, role_name)
    stolen = f"{role_name}_stolen"
    await database.execute(f"BEGIN; ALTER ROLE {role_name} RENAME TO {stolen}; CREATE ROLE {role_name}; COMMIT")
    obj = await kube.wait_reason("app", "NameTaken")
    assert stolen in condition(obj, "Ready")["message"]
    usurper = await database.role(role_name)
    assert usurper is not None
    assert not usurper["rolcanlogin"]
    await database.execute(f"DROP ROLE {role_name}")
    await kube.wait_ready("app")
    assert await database.role(stolen) is None


async def test_a_new_password_waits_until_a_rename_that_is_only_reported_is_undone(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply_secret("source", password="first")
    delivered = {"password": {"secretRef": {"name": "source"}}, "connectionSecret": {"name": "delivered"}}
    await declare(kube, role_name, drift={"policy": "Report"}, **delivered)
    await database.execute(f"ALTER ROLE {role_name} RENAME TO {role_name}_moved")
    await kube.wait_reason("app", "DriftReported")
    await kube.apply_secret("source", password="second")
    await kube.wait_secret("delivered", lambda secret: secret["text"]["password"] == "second", "the new password")
    # The report of a later drift shows that the controller read the role after it knew the new password.
    await database.execute(f"ALTER ROLE {role_name}_moved CONNECTION LIMIT 8")
    await kube.wait_for("app", lambda obj: says(obj, "DriftReported", "name, connectionLimit"), "both drifts reported")
    verifier = await database.verifier(f"{role_name}_moved")
    assert verifier is not None
    assert verifies("first", verifier)
    await database.execute(
        f"ALTER ROLE {role_name}_moved CONNECTION LIMIT 7; ALTER ROLE {role_name}_moved RENAME TO {role_name}"
    )
    await database.wait_password(role_name, "second")
    await kube.wait_ready("app")


async def test_a_role_dropped_and_recreated_is_repaired_under_its_new_oid(
    kube: Kube, database: Database, role_name: str
) -> None:
    await declare(kube, role_name)
    await database.execute(f"BEGIN; DROP ROLE {role_name}; CREATE ROLE {role_name} CREATEDB; COMMIT")
    role = await database.wait_role(role_name, lambda row: row["rolcanlogin"] and not row["rolcreatedb"], "repaired")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["role"]["oid"] == role["oid"]


async def test_a_role_recreated_as_superuser_is_refused_until_nosuperuser(
    kube: Kube, database: Database, role_name: str
) -> None:
    await declare(kube, role_name)
    await database.execute(f"BEGIN; DROP ROLE {role_name}; CREATE ROLE {role_name} SUPERUSER; COMMIT")
    obj = await kube.wait_reason("app", "NotAllowed")
    assert "superuser" in condition(obj, "Ready")["message"]
    role = await database.role(role_name)
    assert role is not None
    assert role["rolsuper"]
    await database.execute(f"ALTER ROLE {role_name} NOSUPERUSER")
    await kube.wait_ready("app")


async def test_drifts_are_counted_one_by_one(kube: Kube, database: Database, role_name: str) -> None:
    await declare(kube, role_name)
    for count in (1, 2, 3):
        await database.execute(f"ALTER ROLE {role_name} CREATEDB CREATEROLE")
        obj = await kube.wait_for("app", drifts(count), f"driftCount {count}")
        assert obj["status"]["driftCount"] == count
        assert obj["status"]["lastDrift"]["fields"] == ["createdb", "createrole"]


async def test_a_change_rolled_back_or_undone_in_its_transaction_is_no_drift(
    kube: Kube, database: Database, role_name: str
) -> None:
    await declare(kube, role_name)
    await database.execute(f"BEGIN; ALTER ROLE {role_name} SUPERUSER; ROLLBACK")
    await database.execute(f"BEGIN; ALTER ROLE {role_name} SUPERUSER; ALTER ROLE {role_name} NOSUPERUSER; COMMIT")
    # By the time this drift is noticed, those two would have been, too.
    await database.execute(f"ALTER ROLE {role_name} CREATEDB")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["driftCount"] == 1
    assert obj["status"]["lastDrift"]["fields"] == ["createdb"]


@pytest.mark.slow
async def test_drift_repeated_immediately_after_each_repair_is_always_repaired(
    kube: Kube, database: Database, role_name: str
) -> None:
    """Each drift follows the last repair immediately, before the watch sees that repair. It is not a contest yet."""
    repeats = LIMIT - 1
    statements = {drift.column: drift.statement for drift in (*ATTRIBUTES, *POWERFUL)}
    names = [f"{role_name}_{number}" for number in range(2)]
    await kube.apply_all({f"app-{number}": {"name": name, **DECLARED} for number, name in enumerate(names)})
    await kube.wait_all_ready()
    before = {name: await database.role(name) or {} for name in names}
    for column, statement in statements.items():
        for name in names:
            for _ in range(repeats):
                await database.execute(statement.format(name))
                await database.wait_role(name, stands(column, before[name][column]), f"{column} repaired")
    count = repeats * len(statements)
    for obj in await kube.wait_all(lambda obj: drifts(count)(obj) and is_ready(obj), f"driftCount {count} and Ready"):
        assert obj["status"]["driftCount"] == count


def stands(column: str, value: object) -> Callable[[RoleRow], bool]:
    return lambda row: bool(row[column] == value)


@pytest.mark.slow
async def test_the_confirming_read_after_a_change_happens_despite_another_read_before_it(stage: Stage) -> None:
    """No notification announces a drift made before `observe` sees our change; in mode Resync there are none at all."""
    async with (
        running(stage.controller(None, "--detection", "resync", "--resync-interval", "240h")) as controller,
        stage.database() as database,
    ):
        for attempt in range(ATTEMPTS):
            name = f"app_{attempt}"
            began = anyio.current_time()
            await stage.kube.apply(f"app-{attempt}", name=name)
            await stage.kube.wait_ready(f"app-{attempt}")
            reconciles = controller.log.count(" reconcile begins ")
            await stage.kube.patch(f"app-{attempt}", {"metadata": {"annotations": {"example.com/note": "new"}}})
            await controller.wait_count(" reconcile begins ", reconciles + 1)
            await database.execute(f"ALTER ROLE {name} CREATEDB")
            if anyio.current_time() - began < CONFIRM_SECONDS:
                await database.wait_role(name, lambda row: not row["rolcreatedb"], "repaired")
                return
    pytest.fail("the machine was too slow for this")


class TestReport:
    async def test_policy_report_lists_differing_fields_and_changes_nothing(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        await declare(kube, role_name, drift={"policy": "Report"})
        await database.execute(f"ALTER ROLE {role_name} CREATEDB CONNECTION LIMIT 99")
        obj = await kube.wait_reason("app", "DriftReported")
        assert condition(obj, "DriftDetected")["status"] == "True"
        assert "createdb, connectionLimit" in condition(obj, "DriftDetected")["message"]
        assert condition(obj, "Ready")["status"] == "False"
        assert obj["status"]["lastDrift"]["corrected"] is False
        assert sorted(obj["status"]["lastDrift"]["fields"]) == ["connectionLimit", "createdb"]
        assert obj["status"]["driftCount"] == 0
        role = await database.role(role_name)
        assert role is not None
        assert (role["rolcreatedb"], role["rolconnlimit"]) == (True, 99)

    async def test_a_reported_drift_ends_once_it_is_undone(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        await declare(kube, role_name, drift={"policy": "Report"})
        await database.execute(f"ALTER ROLE {role_name} CREATEDB")
        await kube.wait_reason("app", "DriftReported")
        await database.execute(f"ALTER ROLE {role_name} NOCREATEDB")
        obj = await kube.wait_ready("app")
        assert condition(obj, "DriftDetected") == {}

    async def test_policy_report_applies_a_changed_spec(self, kube: Kube, database: Database, role_name: str) -> None:
        await declare(kube, role_name, drift={"policy": "Report"})
        await kube.patch("app", {"spec": {"connectionLimit": 8}})
        await kube.wait_ready("app")
        role = await database.role(role_name)
        assert role is not None
        assert role["rolconnlimit"] == 8

    async def test_switching_to_correct_repairs_a_reported_drift(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        await declare(kube, role_name, drift={"policy": "Report"})
        await database.execute(f"ALTER ROLE {role_name} CREATEDB")
        await kube.wait_reason("app", "DriftReported")
        await kube.patch("app", {"spec": {"drift": {"policy": "Correct"}}})
        await database.wait_role(role_name, lambda row: not row["rolcreatedb"], "repaired")
        await kube.wait_ready("app")


@pytest.mark.slow
async def test_every_one_of_many_roles_that_drift_at_once_is_repaired(
    kube: Kube, database: Database, controller: Controller, role_name: str
) -> None:
    names = [f"{role_name}_{number}" for number in range(MANY)]
    await kube.apply_all({f"app-{number}": {"name": name} for number, name in enumerate(names)})
    await kube.wait_all_ready()
    await database.execute(";".join(f"ALTER ROLE {name} LOGIN CREATEDB" for name in names))
    await database.wait_value(
        f"SELECT count(*) FROM pg_roles WHERE rolname LIKE '{role_name}%' AND (rolcanlogin OR rolcreatedb)", 0
    )
    await database.wait_value(
        f"SELECT count(*) FROM pgrole.claim WHERE role_name LIKE '{role_name}%' AND drift_count = 1", len(names)
    )
