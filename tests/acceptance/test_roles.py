"""A PgRole becomes a role, reports it, and changes with its object; deletionPolicy decides its end."""

import secrets
from datetime import UTC, datetime
from typing import Any

import pytest

from pgrole_controller.local.apiserver import LocalApiError
from tests.acceptance.world import Database, Kube, condition

#: Until then, an object that is created again has the role as before: nothing delays the deletion of the former one.
RELEASED = "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = '{}'"


@pytest.fixture
def role_name() -> str:
    """A role name unique to the test."""
    return f"role_{secrets.token_hex(4)}"


async def test_a_role_is_created_as_declared_and_reported_in_status(
    kube: Kube, database: Database, role_name: str
) -> None:
    spec: dict[str, Any] = {
        "name": role_name,
        "login": True,
        "createdb": True,
        "inherit": False,
        "connectionLimit": 20,
        "validUntil": "2031-05-06T07:08:09Z",
        "comment": 'orders service, team "shop"; it\'s ours',
    }
    await kube.apply("orders-app", **spec)
    obj = await kube.wait_ready("orders-app")
    role = await database.role(role_name)
    assert role is not None
    assert role["rolcanlogin"]
    assert role["rolcreatedb"]
    assert not role["rolinherit"]
    assert not role["rolsuper"]
    assert role["rolconnlimit"] == 20
    assert role["rolvaliduntil"] == datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert role["comment"] == spec["comment"]
    status = obj["status"]
    assert status["observedGeneration"] == obj["metadata"]["generation"]
    assert status["role"]["name"] == role_name
    assert status["role"]["oid"] == role["oid"]
    assert status["server"]["name"] == "default"
    identifier = await database.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    assert status["server"]["systemIdentifier"] == identifier
    assert status.get("driftCount", 0) == 0
    assert {item["type"] for item in status["conditions"]} == {"Ready"}
    assert condition(obj, "Ready")["reason"] == "Reconciled"


async def test_without_spec_name_the_role_has_the_objects_name(kube: Kube, database: Database) -> None:
    name = f"orders-app-{secrets.token_hex(4)}"
    await kube.apply(name)
    await kube.wait_ready(name)
    role = await database.role(name)
    assert role is not None
    assert not role["rolcanlogin"]
    assert role["rolinherit"]


@pytest.mark.parametrize(
    "hostile",
    ['"; DROP ROLE postgres; --', "it's", "a\\b", "new\nline", "日" * 19 + "!", "Ünï©ode", "x" * 55, "$$ $1 %s {}"],
)
async def test_any_valid_role_name_is_quoted_correctly(kube: Kube, database: Database, hostile: str) -> None:
    name = f"{secrets.token_hex(2)}{hostile}"
    assert len(name.encode()) <= 63
    await kube.apply("hostile", name=name, comment=hostile)
    await kube.wait_ready("hostile")
    role = await database.role(name)
    assert role is not None
    assert role["comment"] == hostile
    assert await database.role("postgres") is not None
    await kube.patch("hostile", {"spec": {"login": True}})
    await database.wait_role(name, lambda row: row["rolcanlogin"], "LOGIN")


async def test_a_changed_spec_is_applied_without_drift(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("changing", name=role_name, login=True, comment="first")
    await kube.wait_ready("changing")
    await kube.apply("changing", name=role_name, createdb=True, validUntil="2030-01-01T00:00:00+02:00")
    obj = await kube.wait_ready("changing")
    role = await database.role(role_name)
    assert role is not None
    assert not role["rolcanlogin"]
    assert role["rolcreatedb"]
    assert role["comment"] is None
    assert role["rolvaliduntil"] == datetime(2029, 12, 31, 22, 0, tzinfo=UTC)
    assert obj["status"].get("driftCount", 0) == 0
    assert "lastDrift" not in obj["status"]


async def test_a_role_is_maintained_whatever_others_write_to_the_status(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("written", name=role_name)
    obj = await kube.wait_ready("written")
    far = "2027-01-01T00:00:00+24:00"  # for the API server, a time like any other
    drift = {"time": far, "fields": ["login"], "corrected": False}
    status = {
        "conditions": [{**one, "lastTransitionTime": far} for one in obj["status"]["conditions"]],
        "lastDrift": drift,
        "driftHistory": [drift],
        "nextRotation": far,
    }
    path = f"{kube.path('written')}/status"
    await kube.server.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
    await database.execute(f"ALTER ROLE {role_name} CREATEDB")
    obj = await kube.wait_for("written", lambda one: one["status"].get("driftCount") == 1, "driftCount 1")
    assert condition(obj, "Ready")["status"] == "True"
    assert obj["status"]["lastDrift"]["fields"] == ["createdb"]


async def test_kubectl_get_shows_role_server_ready_reason_and_drifts(kube: Kube, role_name: str) -> None:
    await kube.apply("shown", name=role_name)
    await kube.wait_ready("shown")
    answer = await kube.table("shown")
    columns = [column["name"] for column in answer["columnDefinitions"] if column.get("priority", 0) == 0]
    assert columns == ["Name", "Role", "Server", "Ready", "Reason", "Drifts", "Age"]
    assert answer["rows"][0]["cells"][1:5] == [role_name, "default", "True", "Reconciled"]


async def test_creating_a_role_is_reported_in_an_event(kube: Kube, role_name: str) -> None:
    await kube.apply("told", name=role_name)
    await kube.wait_ready("told")
    event = await kube.wait_event("RoleCreated")
    assert event["regarding"]["name"] == "told"
    assert event["type"] == "Normal"


async def test_a_deleted_object_retains_its_role_and_releases_its_claim(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("kept", name=role_name, login=True)
    await kube.wait_ready("kept")
    await kube.delete("kept")
    await database.wait_value(f"SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = '{role_name}'", True)
    assert await database.role(role_name) is not None


async def test_a_recreated_object_takes_its_retained_role_back_without_adopt(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("back", name=role_name, login=True)
    before = await kube.wait_ready("back")
    await kube.delete("back")
    await kube.wait_gone("back")
    await kube.apply("back", name=role_name, login=True)
    after = await kube.wait_ready("back")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["role"]["oid"] == before["status"]["role"]["oid"]
    claim = await database.claim(role_name)
    assert claim is not None
    assert claim["object_uid"] == after["metadata"]["uid"]
    assert claim["released_at"] is None


async def test_another_role_under_the_name_of_a_retained_one_is_not_taken(
    kube: Kube, database: Database, role_name: str
) -> None:
    spec = {"name": role_name, "login": True, "deletionPolicy": "Drop"}
    await kube.apply("gone", name=role_name, login=True)
    await kube.wait_ready("gone")
    await kube.delete("gone")
    await kube.wait_gone("gone")
    await database.wait_value(RELEASED.format(role_name), True)
    await database.execute(f"DROP ROLE {role_name}")
    await database.execute(f"CREATE ROLE {role_name}")
    await kube.apply("gone", **spec)
    obj = await kube.wait_reason("gone", "RoleExists")
    assert "adoption would change login" in condition(obj, "Ready")["message"]
    await kube.delete("gone")
    await kube.wait_gone("gone")
    role = await database.role(role_name)
    assert role is not None
    assert not role["rolcanlogin"]
    await kube.apply("gone", **spec, adopt=True)
    await kube.wait_ready("gone")


async def test_a_retained_role_that_was_renamed_is_left_alone(kube: Kube, database: Database, role_name: str) -> None:
    renamed = f"{role_name}_batch"
    await kube.apply("moved", name=role_name, login=True)
    await kube.wait_ready("moved")
    await kube.delete("moved")
    await kube.wait_gone("moved")
    await database.wait_value(RELEASED.format(role_name), True)
    await database.execute(f"ALTER ROLE {role_name} RENAME TO {renamed}; ALTER ROLE {renamed} CREATEROLE")
    before = await database.role(renamed)
    await kube.apply("moved", name=role_name, login=True, deletionPolicy="Drop")
    obj = await kube.wait_ready("moved")
    assert before is not None
    assert obj["status"]["role"]["oid"] != before["oid"]
    await kube.delete("moved")
    await kube.wait_gone("moved")
    assert await database.role(role_name) is None
    assert await database.role(renamed) == before
    await database.execute(f"DROP ROLE {renamed}")


async def test_drop_drops_the_role_with_its_claim(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("dropped", name=role_name, deletionPolicy="Drop")
    obj = await kube.wait_ready("dropped")
    assert obj["metadata"]["finalizers"] == ["pgrole.dev/drop"]
    await kube.delete("dropped")
    await kube.wait_gone("dropped")
    assert await database.role(role_name) is None
    assert await database.claim(role_name) is None
    await kube.wait_event("RoleDropped")


async def test_drop_waits_while_the_role_owns_objects(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("owner", name=role_name, deletionPolicy="Drop")
    await kube.wait_ready("owner")
    await database.execute(f"CREATE SCHEMA AUTHORIZATION {role_name}")
    await kube.delete("owner")
    obj = await kube.wait_reason("owner", "DropBlocked")
    assert '1 in database "postgres"' in condition(obj, "Ready")["message"]
    assert "Retain" in condition(obj, "Ready")["message"]
    assert await database.role(role_name) is not None
    await database.execute(f"DROP SCHEMA {role_name}")
    await kube.wait_gone("owner")
    assert await database.role(role_name) is None


async def test_switching_to_retain_unblocks_a_blocked_drop(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("stuck", name=role_name, deletionPolicy="Drop")
    await kube.wait_ready("stuck")
    await database.execute(f"CREATE SCHEMA AUTHORIZATION {role_name}")
    await kube.delete("stuck")
    await kube.wait_reason("stuck", "DropBlocked")
    await kube.patch("stuck", {"spec": {"deletionPolicy": "Retain"}})
    await kube.wait_gone("stuck")
    assert await database.role(role_name) is not None


async def test_switching_to_retain_removes_the_finalizer(kube: Kube, role_name: str) -> None:
    await kube.apply("relaxed", name=role_name, deletionPolicy="Drop")
    await kube.wait_ready("relaxed")
    await kube.patch("relaxed", {"spec": {"deletionPolicy": "Retain"}})
    await kube.wait_for("relaxed", lambda obj: not obj["metadata"].get("finalizers"), "no finalizer")


async def test_suspend_stops_all_changes_until_it_ends(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("paused", name=role_name)
    await kube.wait_ready("paused")
    await kube.apply("paused", name=role_name, login=True, suspend=True)
    await kube.wait_reason("paused", "Suspended")
    role = await database.role(role_name)
    assert role is not None
    assert not role["rolcanlogin"]
    await kube.apply("paused", name=role_name, login=True)
    await kube.wait_ready("paused")
    role = await database.role(role_name)
    assert role is not None
    assert role["rolcanlogin"]


async def test_attributes_that_policy_does_not_allow_are_refused_by_name(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("greedy", name=role_name, superuser=True)
    obj = await kube.wait_reason("greedy", "NotAllowed")
    assert "superuser" in condition(obj, "Ready")["message"]
    assert condition(obj, "Stalled")["status"] == "True"
    assert await database.role(role_name) is None
    event = await kube.wait_event("NotAllowed")
    assert event["type"] == "Warning"


async def test_an_object_for_an_undeclared_server_reports_it(kube: Kube, role_name: str) -> None:
    await kube.apply("lost", name=role_name, serverRef={"name": "elsewhere"})
    obj = await kube.wait_reason("lost", "ServerGone")
    assert 'PgServer "elsewhere" does not exist' in condition(obj, "Ready")["message"]


async def test_an_existing_role_is_refused_without_adopt_and_taken_over_with_it(
    kube: Kube, database: Database, role_name: str
) -> None:
    await database.execute(f"CREATE ROLE {role_name} CREATEDB CONNECTION LIMIT 3")
    await kube.apply("adopter", name=role_name, login=True)
    obj = await kube.wait_reason("adopter", "RoleExists")
    assert "login, createdb, connectionLimit" in condition(obj, "Ready")["message"]
    role = await database.role(role_name)
    assert role is not None
    assert role["rolcreatedb"]
    await kube.patch("adopter", {"spec": {"adopt": True}})
    await kube.wait_ready("adopter")
    await kube.wait_event("RoleAdopted")
    role = await database.role(role_name)
    assert role is not None
    assert role["rolcanlogin"]
    assert not role["rolcreatedb"]


async def test_an_object_continues_once_a_conflicting_role_is_dropped(
    kube: Kube, database: Database, role_name: str
) -> None:
    await database.execute(f"CREATE ROLE {role_name}")
    await kube.apply("waiting", name=role_name)
    await kube.wait_reason("waiting", "RoleExists")
    await database.execute(f"DROP ROLE {role_name}")
    await kube.wait_ready("waiting")


async def test_the_claim_decides_between_two_objects_and_is_not_inherited(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("first", name=role_name, login=True)
    await kube.wait_ready("first")
    await kube.apply("second", name=role_name)
    obj = await kube.wait_reason("second", "Conflict")
    assert f"{kube.namespace}/first" in condition(obj, "Ready")["message"]
    await kube.delete("first")
    await kube.wait_reason("second", "RoleExists")
    role = await database.role(role_name)
    assert role is not None
    assert role["rolcanlogin"]


async def test_deleting_an_object_without_the_claim_keeps_the_role(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("winner", name=role_name, login=True)
    await kube.wait_ready("winner")
    await kube.apply("loser", name=role_name, deletionPolicy="Drop")
    await kube.wait_reason("loser", "Conflict")
    await kube.delete("loser")
    await kube.wait_gone("loser")
    assert await database.role(role_name) is not None
    await kube.wait_ready("winner")


async def test_an_invalid_name_is_refused_at_admission_with_the_remedy(kube: Kube) -> None:
    for name, words in [("x" * 64, "bytes"), ("ü" * 32, "bytes"), ("pg_mine", "pg_"), ("public", "reserve")]:
        with pytest.raises(LocalApiError, match=words) as caught:
            await kube.apply("refused", name=name)
        assert caught.value.status == 422


async def test_a_reconciled_object_is_read_but_not_written(kube: Kube, database: Database, role_name: str) -> None:
    await kube.apply("quiet", name=role_name)
    await kube.wait_ready("quiet")
    before = await kube.get("quiet")
    for _ in range(20):
        await database.execute(f'SELECT pg_notify(\'pgrole\', \'{{"op":"update","name":"{role_name}"}}\')')
    # Requests are handled in order, so this object becomes Ready after those reads.
    await kube.apply("later", name=f"{role_name}_later")
    await kube.wait_ready("later")
    after = await kube.get("quiet")
    assert before is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert (await database.claim(role_name) or {})["applied"] == after["status"]["role"]["applied"]
