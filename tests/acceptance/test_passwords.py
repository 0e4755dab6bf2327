"""Passwords follow their Secret, are never shown, and are restored when they are changed in the database."""

import json
import secrets
from base64 import b64encode
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.core.scram import Verifier, make_verifier, verifies
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.world import PATIENCE, Controller, Database, Json, Kube, Stage, condition, is_ready, running, says


@pytest.fixture
def role() -> str:
    return f"p{secrets.token_hex(3)}"


def source(name: str = "source", **more: Any) -> Json:
    return {"secretRef": {"name": name, **more}}


def drifts(count: int) -> Any:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def test_the_role_logs_in_with_the_password_in_the_secret(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply_secret("source", password="pässword \u00aa 1")
    await kube.apply("app", name=role, login=True, password=source())
    obj = await kube.wait_ready("app")
    connection = await asyncpg.connect(shared_postgres.dsn(role, password="pässword \u00aa 1"))
    await connection.close()
    held = await kube.secret("source")
    assert held is not None
    assert obj["status"]["passwordSecretVersion"] == held["metadata"]["resourceVersion"]


async def test_a_changed_secret_is_applied(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="first")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    await database.wait_password(role, "first")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0, "a changed Secret is no drift"


async def test_a_password_changed_in_the_database_is_restored(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    await database.wait_password(role, "ours")
    assert obj["status"]["lastDrift"]["fields"] == ["password"]
    assert obj["status"]["lastDrift"]["corrected"] is True


async def test_a_password_set_despite_disabled_is_removed(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, password={"disabled": True})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    await kube.wait_for("app", drifts(1), "driftCount 1")
    assert await database.verifier(role) is None


async def test_a_missing_secret_or_key_is_reported_while_the_rest_is_applied(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply("app", name=role, login=True, password=source())
    obj = await kube.wait_reason("app", "SecretMissing")
    assert '"source"' in condition(obj, "Ready")["message"]
    await database.wait_role(role, lambda row: bool(row["rolcanlogin"]), "login")
    await kube.apply_secret("source", other="x")
    await kube.wait_for("app", lambda obj: says(obj, "SecretMissing", 'key "password"'), "which key is missing")
    await kube.apply_secret("source", password="now")
    await database.wait_password(role, "now")
    await kube.wait_ready("app")
    await kube.delete_secret("source")
    await kube.wait_reason("app", "SecretMissing")
    await database.wait_password(role, "now")


async def test_a_verifier_in_the_secret_is_used_unchanged(kube: Kube, database: Database, role: str) -> None:
    ready = make_verifier("known elsewhere", b"0123456789abcdef", 5000)
    await kube.apply_secret("source", verifier=ready.text)
    await kube.apply("app", name=role, password=source(key="verifier"))
    await kube.wait_ready("app")
    assert await database.verifier(role) == ready


async def test_a_generated_password_is_delivered_and_works(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply("app", name=role, login=True, password={"generate": {}}, connectionSecret={"name": "delivered"})
    obj = await kube.wait_ready("app")
    secret = await kube.wait_secret("delivered")
    assert secret["text"]["username"] == role
    assert len(secret["text"]["password"]) == 32
    connection = await asyncpg.connect(secret["text"]["uri"])
    await connection.close()
    assert secret["type"] == "Opaque"
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [obj["metadata"]["uid"]]


async def test_a_deleted_connection_secret_is_recreated_with_another_password(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply("app", name=role, password={"generate": {}}, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    before = (await kube.wait_secret("delivered"))["text"]["password"]
    await kube.delete_secret("delivered")
    after = (await kube.wait_secret("delivered"))["text"]["password"]
    assert after != before
    await database.wait_password(role, after)
    await kube.wait_event("SecretRestored")
    await kube.wait_ready("app")


async def test_a_requested_rotation_happens_once(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, password={"generate": {}}, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    before = (await kube.wait_secret("delivered"))["text"]["password"]
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    secret = await kube.wait_secret("delivered", lambda held: held["text"]["password"] != before, "another password")
    await database.wait_password(role, secret["text"]["password"])
    await kube.wait_event("PasswordRotated")
    await kube.patch("app", {"spec": {"comment": "look again"}})
    await database.wait_role(role, lambda row: row["comment"] == "look again", "comment")
    assert await kube.secret("delivered") == secret


@pytest.mark.slow
async def test_passwords_are_rotated_on_schedule(kube: Kube, database: Database, role: str) -> None:
    await kube.apply(
        "app", name=role, password={"generate": {"rotateEvery": "3s"}}, connectionSecret={"name": "delivered"}
    )
    obj = await kube.wait_ready("app")
    assert obj["status"]["nextRotation"]
    works: set[str] = set()

    async def have_three_worked() -> bool:
        held = (await kube.wait_secret("delivered"))["text"]["password"]
        verifier = await database.verifier(role)
        if verifier is not None and verifies(held, verifier):
            works.add(held)
        return len(works) == 3

    assert await reached(have_three_worked, PATIENCE), f"{len(works)} passwords"


READY = make_verifier("known elsewhere", b"0123456789abcdef", 5000).text

#: Others: TestScramSecrets in tests/unit/test_scram.py.
MALFORMED: dict[str, tuple[str | bytes, str, str]] = {
    "empty": (b"", "SecretMissing", "is empty"),
    "not UTF-8": (b"\xff\xfe\xfd", "InvalidSpec", "not UTF-8 text"),
    "a verifier cut short": (READY[:-10], "InvalidSpec", "begins like a SCRAM-SHA-256 verifier but is not one"),
}


async def row_version(database: Database, role: str) -> Any:
    """Returns a version that changes with every statement that writes the role's row."""
    return await database.fetchval("SELECT xmin::text FROM pg_authid WHERE rolname = $1", role)


async def wait_settled(kube: Kube, database: Database, role: str, name: str = "source") -> None:
    """Waits until the claim names the Secret's current version."""
    held = await kube.secret(name)
    assert held is not None
    version = f"{held['metadata']['uid']}/{held['metadata']['resourceVersion']}"
    sql = f"SELECT password_source LIKE '{version}/%' FROM pgrole.claim WHERE role_name = '{role}'"
    await database.wait_value(sql, True)


async def wait_digest(database: Database, role: str, verifier: str) -> None:
    """Waits until the claim has the digest of the role's verifier."""
    sql = f"SELECT password_digest FROM pgrole.claim WHERE role_name = '{role}'"
    await database.wait_value(sql, Verifier(verifier).digest)


@pytest.mark.parametrize("kind", MALFORMED)
async def test_an_invalid_password_is_reported_and_the_role_keeps_its_current_one(
    kube: Kube, database: Database, role: str, kind: str
) -> None:
    content, reason, words = MALFORMED[kind]
    await kube.apply_secret("source", password="good")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    before = await row_version(database, role)
    await kube.apply_secret("source", password=content)
    obj = await kube.wait_for("app", lambda obj: says(obj, reason, '"source"', '"password"', words), words)
    assert "the controller leaves the role's password as it is" in condition(obj, "Ready")["message"]
    assert await row_version(database, role) == before
    await kube.apply_secret("source", password="better")
    await database.wait_password(role, "better")
    await kube.wait_ready("app")


async def test_a_relabelled_secret_changes_nothing(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source(), connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    before, delivered = await row_version(database, role), await kube.secret("delivered")
    await kube.patch_secret("source", {"metadata": {"labels": {"seen": "yes"}}})
    await wait_settled(kube, database, role)
    obj = await kube.wait_ready("app")
    assert await row_version(database, role) == before
    assert await kube.secret("delivered") == delivered
    assert obj["status"]["driftCount"] == 0


async def test_a_recreated_secret_or_renamed_key_with_the_same_password_changes_nothing(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    before = await row_version(database, role)
    await kube.delete_secret("source")
    await kube.wait_reason("app", "SecretMissing")
    await kube.apply_secret("source", password="ours")
    await wait_settled(kube, database, role)
    await kube.wait_ready("app")
    await kube.apply_secret("source", renamed="ours")
    await kube.wait_for("app", lambda obj: says(obj, "SecretMissing", 'key "password"'), "the key is missing")
    await kube.apply("app", name=role, password=source(key="renamed"))
    obj = await kube.wait_ready("app")
    assert await row_version(database, role) == before
    assert obj["status"]["driftCount"] == 0


async def test_a_trailing_line_break_is_part_of_the_password(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply_secret("source", password="with a line break\n")
    await kube.apply("app", name=role, login=True, password=source())
    await kube.wait_ready("app")
    connection = await asyncpg.connect(shared_postgres.dsn(role, password="with a line break\n"))
    await connection.close()


async def test_the_same_password_set_again_with_another_salt_is_no_drift(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    again = make_verifier("ours", b"another salt 16b", 4096)
    await database.execute(f"ALTER ROLE {role} PASSWORD '{again.text}'")
    await wait_digest(database, role, again.text)
    obj = await kube.wait_ready("app")
    assert await database.verifier(role) == again
    assert obj["status"]["driftCount"] == 0


@pytest.mark.parametrize(
    "stored",
    ["md5" + "0" * 32, READY.replace("$5000:", f"${2**31 - 1}:")],
    ids=["md5", "the most iterations"],
)
async def test_a_stored_verifier_too_expensive_to_compare_is_replaced_without_hashing(
    kube: Kube, database: Database, role: str, stored: str
) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    # ALTER ROLE itself would compute with this verifier for minutes.
    await database.execute("SET allow_system_table_mods = on")
    await database.execute(f"UPDATE pg_authid SET rolpassword = '{stored}' WHERE rolname = '{role}'")
    await database.wait_password(role, "ours")
    await kube.wait_for("app", drifts(1), "driftCount 1")


async def test_setting_a_password_keeps_valid_until(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="first")
    await kube.apply("app", name=role, password=source(), validUntil="2040-01-01T00:00:00Z")
    await kube.wait_ready("app")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    row = await database.role(role)
    assert row is not None
    assert row["rolvaliduntil"].isoformat() == "2040-01-01T00:00:00+00:00"


async def test_switching_between_kinds_of_passwords_is_no_drift(kube: Kube, database: Database, role: str) -> None:
    async def change(**spec: Any) -> None:
        await kube.apply("app", name=role, **spec)
        await kube.wait_ready("app")

    delivered = {"connectionSecret": {"name": "delivered"}}
    await kube.apply_secret("source", password="from the Secret")
    for _ in range(2):
        await change(password=source())
        await database.wait_password(role, "from the Secret")
        await change(password={"generate": {}}, **delivered)
        await database.wait_password(role, (await kube.wait_secret("delivered"))["text"]["password"])
        await change(password={"disabled": True})
        assert await database.verifier(role) is None
        await kube.wait_no_secret("delivered")
        await change()
        await database.execute(f"ALTER ROLE {role} PASSWORD 'of somebody'")
        await change(password={"disabled": True})
        assert await database.verifier(role) is None
        await change(password={"generate": {}}, **delivered)
        await database.wait_password(role, (await kube.wait_secret("delivered"))["text"]["password"])
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0
    assert await kube.events("DriftCorrected") == []


async def test_a_dropped_role_is_recreated_with_its_password_and_counts_as_one_drift(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    await database.execute(f"DROP ROLE {role}")
    await database.wait_role(role, bool, "recreated")
    await database.wait_password(role, "ours")
    await wait_settled(kube, database, role)
    obj = await kube.wait_for("app", lambda obj: drifts(1)(obj) and is_ready(obj), "driftCount 1 and Ready")
    assert obj["status"]["driftCount"] == 1
    assert obj["status"]["lastDrift"]["fields"] == ["role"]


@pytest.mark.parametrize("dropped", [False, True], ids=["changed", "dropped"])
async def test_an_ignored_password_is_set_at_creation_and_then_left_unchanged(
    kube: Kube, database: Database, role: str, dropped: bool
) -> None:
    ignored = {"drift": {"ignore": ["password"]}}
    await kube.apply_secret("source", password="at creation")
    await kube.apply("app", name=role, password=source(), **ignored)
    await kube.wait_ready("app")
    await database.wait_password(role, "at creation")
    if dropped:  # it is created once more
        await database.execute(f"DROP ROLE {role}")
        await database.wait_role(role, bool, "recreated")
        await database.wait_password(role, "at creation")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'of somebody'")
    await kube.apply_secret("source", password="later")
    await kube.delete_secret("source")
    await kube.apply("app", name=role, password=source(), **ignored, comment="look again")
    await database.wait_role(role, lambda row: row["comment"] == "look again", "comment")
    await kube.wait_ready("app")
    await database.wait_password(role, "of somebody")


async def test_an_ignored_password_is_not_set_on_adoption(kube: Kube, database: Database, role: str) -> None:
    await database.execute(f"CREATE ROLE {role} PASSWORD 'of somebody'")
    before = await row_version(database, role)
    await kube.apply_secret("source", password="ours")
    ignored = {"drift": {"ignore": ["password"]}}
    await kube.apply("app", name=role, adopt=True, password=source(), **ignored)
    await kube.wait_ready("app")
    assert await row_version(database, role) == before


@pytest.mark.parametrize("adopted", [False, True], ids=["created", "adopted"])
async def test_an_ignored_password_is_not_set_when_a_recreated_object_takes_its_role_back(
    kube: Kube, database: Database, role: str, adopted: bool
) -> None:
    declared = {"name": role, "adopt": adopted, "password": source(), "drift": {"ignore": ["password"]}}
    await kube.apply_secret("source", password="at creation")
    if adopted:
        await database.execute(f"CREATE ROLE {role}")
    await kube.apply("app", **declared)
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'of somebody'")
    await kube.delete("app")
    await kube.apply("app", **declared)
    await kube.wait_ready("app")
    await database.wait_password(role, "of somebody")


@pytest.mark.parametrize("password", [source(), {"disabled": True}, {"generate": {}}], ids=["Secret", "none", "made"])
async def test_a_refused_object_names_the_password_that_adoption_would_change(
    kube: Kube, database: Database, role: str, password: Json
) -> None:
    await database.execute(f"CREATE ROLE {role} PASSWORD 'of somebody'")
    await kube.apply_secret("source", password="ours")
    more = {"connectionSecret": {"name": "delivered"}} if "generate" in password else {}
    await kube.apply("app", name=role, password=password, **more)
    await kube.wait_for("app", lambda obj: says(obj, "RoleExists", "would change password"), "password named")
    assert await kube.secret("delivered") is None
    await database.wait_password(role, "of somebody")
    await kube.apply("app", name=role, adopt=True, password=password, **more)
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0


async def test_policy_report_leaves_a_changed_password_but_applies_a_changed_secret(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source(), drift={"policy": "Report"})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    obj = await kube.wait_reason("app", "DriftReported")
    assert condition(obj, "DriftDetected")["status"] == "True"
    assert obj["status"]["lastDrift"]["fields"] == ["password"]
    await database.wait_password(role, "theirs")
    await kube.apply_secret("source", password="changed")
    await database.wait_password(role, "changed")
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    await kube.wait_reason("app", "DriftReported")
    await kube.apply("app", name=role, password=source(), drift={"policy": "Correct"})
    await database.wait_password(role, "changed")
    obj = await kube.wait_ready("app")
    assert condition(obj, "DriftDetected") == {}


@pytest.mark.since(16, "scram_iterations")
@pytest.mark.slow
async def test_a_new_verifier_has_the_servers_current_iterations(stage: Stage) -> None:
    async with running(stage.controller()), stage.database() as database:
        await stage.kube.apply_secret("source", password="first")
        await stage.kube.apply("app", password=source())
        await stage.kube.wait_ready("app")
        before = await database.verifier("app")
        await database.execute("ALTER SYSTEM SET scram_iterations = 7000")
        await database.execute("SELECT pg_reload_conf()")
        await database.wait_value("SELECT current_setting('scram_iterations')", "7000")
        await stage.kube.apply("app", password=source(), comment="look again")
        await stage.kube.wait_ready("app")
        assert await database.verifier("app") == before
        await stage.kube.apply_secret("source", password="second")
        await database.wait_password("app", "second")
        after = await database.verifier("app")
        assert after is not None
        assert after.scram is not None
        assert after.scram.iterations == 7000


@pytest.mark.slow
async def test_an_object_that_waits_for_a_key_is_retried_with_growing_delays(stage: Stage) -> None:
    async with running(stage.controller()) as controller:
        await stage.kube.apply_secret("source", other="x")
        await stage.kube.apply("app", password=source())
        await stage.kube.wait_reason("app", "SecretMissing")
        await controller.wait_count("reason=retry", 2)
        seen = controller.log.count(" reconcile begins ")
        await controller.wait_count("reason=retry", 3)
        assert controller.log.count(" reconcile begins ") - seen <= 4


def rules(*resources: str, group: str = "") -> Json:
    return {"apiGroups": [group], "resources": list(resources), "verbs": ["get", "list", "watch", "create", "patch"]}


async def grant(kube: Kube, name: str, *allowed: Json) -> None:
    """Grants these rights in the namespace to the controller's user."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{kube.namespace}"
    await kube.server.request("POST", f"{path}/roles", {"metadata": {"name": name}, "rules": list(allowed)})
    subject = {"kind": "User", "name": "pgrole-controller", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await kube.server.request("POST", f"{path}/rolebindings", binding)


@pytest.mark.slow
async def test_without_the_right_to_list_secrets_objects_report_it_and_others_continue(
    stage: Stage, api_server: ApiServer
) -> None:
    kube = stage.kube
    await grant(
        kube,
        "but-secrets",
        rules("namespaces"),
        rules("pgroles", "pgroles/status", group="pgrole.dev"),
        rules("events", group="events.k8s.io"),
    )
    await kube.apply_secret("source", password="ours")
    config = api_server.kubeconfig_of("pgrole-controller")
    arguments = ("--namespace", kube.namespace, "--cluster-id", "here")
    async with (
        running(Controller(config, stage.postgres.dsn(), stage.folder, *arguments)) as controller,
        stage.database() as database,
    ):
        await kube.apply("plain", login=True)
        await kube.wait_ready("plain")
        await kube.apply("app", login=True, password=source())
        await kube.apply("made", password={"generate": {}}, connectionSecret={"name": "delivered"})
        for name in ("app", "made"):
            await kube.wait_for(
                name, lambda obj: says(obj, "SecretMissing", "cannot list", "secrets"), "what is missing"
            )
        await database.wait_role("app", lambda row: bool(row["rolcanlogin"]), "login")
        await database.execute("ALTER ROLE plain NOLOGIN")
        await database.wait_role("plain", lambda row: bool(row["rolcanlogin"]), "login")
        assert await kube.secret("delivered") is None
        # By now both are retried so rarely that only a change of the Secrets can end the wait in time.
        await controller.wait_count("reason=retry", 4)
        await grant(kube, "secrets", rules("secrets"))
        await kube.wait_ready("app", 2 * PATIENCE)  # listing is retried every 30 s by now
        await kube.wait_ready("made")
        await database.wait_password("app", "ours")


async def poll_activity(database: Database, seen: set[str]) -> None:
    while True:
        rows = await database.connection.fetch(
            "SELECT query FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        seen |= {row["query"] for row in rows if row["query"]}
        await anyio.sleep(0.01)  # an idle session shows its last statement as well


async def live_through_everything(kube: Kube, database: Database) -> set[str]:
    """Creates, changes, rotates, restores and drifts passwords, wrong ones included; returns all of them."""
    words = {"first-clear-text", "second-clear-text", "under-the-wrong-key", "clear-\0-text", "md5" + "a1" * 16}
    broken = READY[:-12] + "malformed$$$"
    too_many = READY.replace("$5000:", "$2000000000:")

    async def deliver() -> str:
        held = await kube.wait_secret("delivered", lambda held: held["text"]["password"] not in words, "another")
        words.add(held["text"]["password"])
        await database.wait_password("made", held["text"]["password"])
        return str(held["text"]["password"])

    delivered = {"connectionSecret": {"name": "copied"}}
    await kube.apply_secret("source", password="first-clear-text")
    await kube.apply("app", login=True, password=source(), **delivered)
    await kube.apply("made", password={"generate": {}}, connectionSecret={"name": "delivered"})
    await database.wait_password("app", "first-clear-text")
    await deliver()
    await kube.apply_secret("source", password="second-clear-text")
    await database.wait_password("app", "second-clear-text")
    await kube.patch("made", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    await deliver()
    await kube.delete_secret("delivered")
    await deliver()
    await database.execute("ALTER ROLE made PASSWORD NULL")
    await kube.wait_for("made", drifts(1), "driftCount 1")
    foreign = make_verifier("of somebody", b"0123456789abcdef", 4096)
    await database.execute(f"ALTER ROLE app PASSWORD '{foreign.text}'")
    await database.wait_password("app", "second-clear-text")
    for content in ("md5" + "a1" * 16, "clear-\0-text", broken, too_many):
        await kube.apply_secret("source", password=content)
        await kube.wait_reason("app", "InvalidSpec")
        await kube.apply_secret("source", other="under-the-wrong-key")
        await kube.wait_reason("app", "SecretMissing")
    bad = {"name": "copied", "template": {"data": {"x": "{nonsense}"}}}
    await kube.apply_secret("source", password="second-clear-text")
    await kube.apply("app", login=True, password=source(), connectionSecret=bad)
    await kube.wait_reason("app", "InvalidSpec")
    await kube.apply_secret("copied-too", password="x")
    await kube.apply("app", login=True, password=source(), connectionSecret={"name": "copied-too"})
    await kube.wait_reason("app", "Conflict")
    return {*words, broken, too_many}


@pytest.mark.slow
async def test_no_password_appears_in_any_log_statement_status_or_event(stage: Stage) -> None:
    statements: set[str] = set()
    async with stage.database() as database, stage.database() as other:
        for setting in ("log_statement = 'all'", "log_min_duration_statement = 0", "log_min_messages = debug1"):
            await database.execute(f"ALTER SYSTEM SET {setting}")
        await database.execute("SELECT pg_reload_conf()")
        await database.wait_value("SELECT current_setting('log_statement')", "all")
        async with running(stage.controller()) as controller, anyio.create_task_group() as tasks:
            tasks.start_soon(poll_activity, other, statements)
            words = await live_through_everything(stage.kube, database)
            tasks.cancel_scope.cancel()
        events = await stage.kube.server.request("GET", f"/api/v1/namespaces/{stage.kube.namespace}/events")
    said = {
        "PostgreSQL's log": stage.postgres.log.read_text(encoding="utf-8", errors="replace"),
        "the controller's log": controller.log,
        "pg_stat_activity": "\n".join(statements),
        "objects": json.dumps(await stage.kube.objects(), ensure_ascii=False),
        "Events": json.dumps(events, ensure_ascii=False),
    }
    first_lines = {statement.strip().splitlines()[0][:200] for statement in statements}
    assert {line for line in first_lines if line not in said["PostgreSQL's log"]} == set(), "each is logged"
    assert "ALTER ROLE" in said["PostgreSQL's log"], "statements are logged"
    assert "PasswordRotated" in said["Events"]
    for place, text in said.items():
        for word in words:
            for form in (word, b64encode(word.encode()).decode().rstrip("=")[:-1]):
                assert form not in text, f"{word!r} is in {place}"


@pytest.mark.slow
async def test_a_secret_with_tens_of_thousands_of_keys_is_not_read_until_some_are_deleted(
    kube: Kube, database: Database, role: str
) -> None:
    many = {f"k{number}": "x" for number in range(21_000)}
    await kube.apply_secret("source", password="swordfish", **many)
    await kube.apply("app", name=role, login=True, password={"secretRef": {"name": "source"}})
    obj = await kube.wait_reason("app", "SecretMissing")
    assert 'Secret "source" has more than 20,000 fields' in condition(obj, "Ready")["message"]
    await kube.patch_secret("source", {"data": dict.fromkeys(list(many)[1_000:])})
    await kube.wait_ready("app")
    await database.wait_password(role, "swordfish")
