"""The connection Secret: delivered, kept as declared, and never written if it belongs to someone else."""

import secrets
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.objects import STALE
from pgrole_controller.core.connection_secret import Address, DesiredSecret, RotationStamp, render
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.local.apiserver import LocalApiError
from tests.acceptance.world import PATIENCE, Database, Json, Kube, Stage, condition, is_ready, running, says

GENERATED: Json = {"password": {"generate": {}}, "connectionSecret": {"name": "delivered"}}
TAMPERED = ["a value", "a key more", "a key less", "the hash", "the time of rotation", "the place of the password"]


@pytest.fixture
def role() -> str:
    return f"c{secrets.token_hex(3)}"


def delivering(template: Json) -> Json:
    return {**GENERATED, "connectionSecret": {"name": "delivered", "template": template}}


async def deliver(kube: Kube, role: str, **spec: Any) -> Json:
    """Returns the Secret of a new object with a generated password, or with this `spec`."""
    await kube.apply("app", name=role, **(GENERATED | spec))
    await kube.wait_ready("app")
    return await kube.wait_secret("delivered")


def text(secret: Json) -> str:
    return str(secret["text"]["password"])


def version(secret: Json | None) -> str:
    assert secret is not None
    return f"{secret['metadata']['uid']}/{secret['metadata']['resourceVersion']}"


async def row_version(database: Database, role: str) -> Any:
    return await database.fetchval("SELECT xmin::text FROM pg_authid WHERE rolname = $1", role)


async def wait_known(kube: Kube, database: Database, role: str, name: str = "delivered") -> Json:
    """Returns the Secret once the claim names its current version."""
    with anyio.fail_after(PATIENCE):
        while True:
            held = await kube.wait_secret(name)
            sql = "SELECT connection_secret LIKE $1 || ' %' FROM pgrole.claim WHERE role_name = $2"
            if await database.fetchval(sql, version(held), role):
                return held
            await anyio.sleep(0.02)


def tamper(kind: str, secret: Json) -> Json:
    annotations = secret["metadata"]["annotations"]
    place = annotations["pgrole.dev/password-in"]
    tampered: dict[str, Json] = {
        "a value": {"data": {"password": "dGFtcGVyZWQ="}},
        "a key more": {"data": {"more": "dGFtcGVyZWQ="}},
        "a key less": {"data": {"uri": None}},
        "the hash": {"metadata": {"annotations": {"pgrole.dev/hash": None}}},
        "the time of rotation": {"metadata": {"annotations": {"pgrole.dev/rotated-at": "9999-12-31T23:59:59Z"}}},
        "the place of the password": {"metadata": {"annotations": {"pgrole.dev/password-in": place[:-2] + "16"}}},
    }
    return tampered[kind]


@pytest.mark.parametrize("kind", TAMPERED)
async def test_a_tampered_secret_is_restored_with_another_password(
    kube: Kube, database: Database, role: str, kind: str
) -> None:
    before = await deliver(kube, role)
    await kube.patch_secret("delivered", tamper(kind, before))
    after = await kube.wait_secret("delivered", lambda held: text(held) not in (text(before), "tampered"), "another")
    await database.wait_password(role, text(after))
    assert after["text"].keys() == before["text"].keys()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await kube.wait_event("SecretRestored")
    assert (await kube.wait_ready("app"))["status"]["driftCount"] == 0


async def test_a_tampered_or_deleted_secret_gets_its_copied_password_back(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="copied: {}%@/ß")
    before = await deliver(kube, role, password={"secretRef": {"name": "source"}})
    assert text(before) == "copied: {}%@/ß"
    seen = await row_version(database, role)
    await kube.patch_secret("delivered", tamper("a value", before | {"metadata": {"annotations": PLACE}}))
    after = await kube.wait_secret("delivered", lambda held: text(held) == text(before), "as before")
    assert after["text"] == before["text"]
    await kube.delete_secret("delivered")
    after = await kube.wait_secret("delivered")
    assert after["text"] == before["text"]
    assert await row_version(database, role) == seen
    await kube.apply_secret("source", password="another")
    await kube.wait_secret("delivered", lambda held: text(held) == "another", "the password of the Secret")
    await database.wait_password(role, "another")


PLACE = {"pgrole.dev/password-in": "password/0+1"}


async def test_metadata_of_others_stays_and_causes_no_change(kube: Kube, database: Database, role: str) -> None:
    before = await deliver(kube, role)
    seen = await row_version(database, role)
    metadata = {"labels": {"theirs": "1"}, "annotations": {"example.com/theirs": "1"}}
    patched = await kube.patch_secret("delivered", {"metadata": metadata})
    after = await wait_known(kube, database, role)
    assert version(after) == version(patched)
    assert after["text"] == before["text"]
    assert await row_version(database, role) == seen
    await kube.wait_ready("app")


async def test_a_removed_template_label_is_restored_with_the_same_password(
    kube: Kube, database: Database, role: str
) -> None:
    template = {"metadata": {"labels": {"team": "shop"}, "annotations": {"example.com/a": "1"}}}
    before = await deliver(kube, role, connectionSecret={"name": "delivered", "template": template})
    assert before["metadata"]["labels"]["team"] == "shop"
    seen = await row_version(database, role)
    await kube.patch_secret("delivered", {"metadata": {"labels": {"team": None}}})
    after = await kube.wait_secret("delivered", lambda held: held["metadata"].get("labels", {}).get("team"), "label")
    await wait_known(kube, database, role)
    assert after["text"] == before["text"]
    assert await row_version(database, role) == seen


async def test_a_changed_template_is_rendered_with_the_same_password(kube: Kube, database: Database, role: str) -> None:
    before = await deliver(kube, role)
    password, seen = text(before), await row_version(database, role)

    async def change(data: dict[str, str], labels: dict[str, str] | None = None) -> Json:
        template: Json = {"data": data} | ({"metadata": {"labels": labels}} if labels else {})
        await kube.apply("app", name=role, **delivering(template))
        return await kube.wait_secret("delivered", lambda held: held["text"].keys() == data.keys(), "template")

    url = "postgresql://{username}:{password_url}@{host}:{port}/{database}?sslmode={sslmode}"
    held = await change({"DATABASE_URL": url}, {"team": "shop"})
    assert f"//{role}:{password}@127.0.0.1:" in held["text"]["DATABASE_URL"]
    held = await change({"a": "{{{password}}} {password}", "b": "ü{password_pgpass}"})
    assert held["text"] == {"a": f"{{{password}}} {password}", "b": f"ü{password}"}
    assert "team" not in held["metadata"].get("labels", {})
    await kube.apply("app", name=role, **GENERATED)
    held = await kube.wait_secret("delivered", lambda held: "uri" in held["text"], "conventional keys")
    assert held["text"] == before["text"]
    await kube.wait_ready("app")
    assert await row_version(database, role) == seen


async def test_a_changed_length_applies_from_the_next_password_on(kube: Kube, database: Database, role: str) -> None:
    before = await deliver(kube, role)
    longer = GENERATED | {"password": {"generate": {"length": 64}}, "comment": "longer"}
    await kube.apply("app", name=role, **longer)
    await kube.wait_ready("app")
    held = await kube.secret("delivered")
    assert version(held) == version(before)
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    after = await kube.wait_secret("delivered", lambda held: len(text(held)) == 64, "64 characters")
    await database.wait_password(role, text(after))


async def test_a_generated_password_changed_in_the_database_is_restored_from_the_secret(
    kube: Kube, database: Database, role: str
) -> None:
    before = await deliver(kube, role)
    await database.execute(f"ALTER ROLE {role} PASSWORD NULL")
    await kube.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "driftCount 1")
    await database.wait_password(role, text(before))
    assert version(await kube.secret("delivered")) == version(before)


async def test_a_renamed_secret_keeps_its_password_and_the_old_one_is_deleted(
    kube: Kube, database: Database, role: str
) -> None:
    before = await deliver(kube, role)
    await kube.apply("app", name=role, **(GENERATED | {"connectionSecret": {"name": "renamed"}}))
    after = await wait_known(kube, database, role, "renamed")
    await kube.wait_no_secret("delivered")
    await database.wait_password(role, text(after))
    await kube.wait_ready("app")
    assert text(after) == text(before), "an application that uses it keeps working"


async def test_a_connection_secret_that_is_no_longer_declared_is_deleted(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    password = {"secretRef": {"name": "source"}}
    await deliver(kube, role, password=password)
    await kube.apply("app", name=role, password=password)
    await kube.wait_no_secret("delivered")
    await kube.wait_ready("app")
    assert await kube.secret("source") is not None
    await database.wait_password(role, "ours")


@pytest.mark.parametrize("password", [{"disabled": True}, None], ids=["none", "unmanaged"])
async def test_a_generated_password_that_is_no_longer_declared_leaves_the_secret(
    kube: Kube, role: str, password: Json | None
) -> None:
    before = (await deliver(kube, role))["text"]
    declared = {} if password is None else {"password": password}
    await kube.apply("app", name=role, connectionSecret={"name": "delivered"}, **declared)
    await kube.wait_ready("app")
    after = (await kube.wait_secret("delivered"))["text"]
    assert set(before) - set(after) == {"password", "pgpass"}
    assert not any(before["password"] in text for text in after.values())


async def test_a_generated_password_is_kept_by_referencing_its_secret(
    kube: Kube, database: Database, role: str
) -> None:
    before = await deliver(kube, role)
    password = {"secretRef": {"name": "delivered"}}
    await kube.apply("app", name=role, password=password)
    await kube.wait_ready("app")
    await database.wait_password(role, text(before))
    assert version(await kube.secret("delivered")) == version(before)
    await kube.apply("app", name=role, **(GENERATED | {"password": password}))
    await kube.wait_for("app", lambda obj: says(obj, "InvalidSpec", "both name"), "both name one Secret")
    assert version(await kube.secret("delivered")) == version(before)


OWNERS: dict[str, list[Json]] = {
    "nobody's": [],
    "another PgRole's": [{"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "other", "uid": "u-1"}],
    "another kind's": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "app", "uid": "u-2", "controller": True}
    ],
    "one of our name without our hash": [
        {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "app", "uid": "u-3", "controller": True}
    ],
}


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
async def test_a_secret_of_another_owner_stays_untouched_and_the_rest_is_applied(
    kube: Kube, database: Database, role: str, owners: list[Json]
) -> None:
    await kube.apply_secret("delivered", password="theirs")
    before = await kube.patch_secret("delivered", {"metadata": {"ownerReferences": owners}})
    await kube.apply("app", name=role, login=True, **GENERATED)
    await kube.wait_for(
        "app", lambda obj: says(obj, "Conflict", '"delivered"', "does not belong to this object"), "Conflict"
    )
    await database.wait_role(role, lambda row: bool(row["rolcanlogin"]), "login")
    assert await database.verifier(role) is None
    assert version(await kube.secret("delivered")) == version(before)
    await kube.delete_secret("delivered")
    await kube.wait_ready("app")
    await database.wait_password(role, text(await kube.wait_secret("delivered")))


async def test_in_a_namespace_that_is_deleted_the_condition_says_why_no_secret_is_written(
    kube: Kube, role: str
) -> None:
    await deliver(kube, role)
    await kube.server.request("DELETE", f"/api/v1/namespaces/{kube.namespace}")
    await kube.delete_secret("delivered")
    await kube.wait_for(
        "app", lambda obj: says(obj, "SecretMissing", "delivered", "its namespace is being deleted"), "the cause"
    )


async def test_a_secret_left_by_an_object_of_the_same_name_is_taken_over_with_its_password(
    kube: Kube, database: Database, role: str
) -> None:
    before = await deliver(kube, role)
    await kube.delete("app")
    await kube.wait_gone("app")
    await kube.apply("app", name=role, **GENERATED)
    obj = await kube.wait_ready("app")
    after = await kube.wait_secret("delivered")
    assert text(after) == text(before)
    assert [owner["uid"] for owner in after["metadata"]["ownerReferences"]] == [obj["metadata"]["uid"]]
    await database.wait_password(role, text(after))


async def test_the_second_object_that_names_a_secret_is_refused(kube: Kube, database: Database, role: str) -> None:
    before = await deliver(kube, role)
    await kube.apply("second", name=f"{role}_second", **GENERATED)
    await kube.wait_for("second", lambda obj: says(obj, "Conflict", '"delivered"'), "Conflict")
    assert version(await kube.secret("delivered")) == version(before)
    await kube.wait_ready("app")
    await database.wait_password(role, text(before))


#: Others: tests/unit/test_connection_secret.py.
REFUSED = {
    "{nonsense} {password}": "{nonsense} is not a field",
    "{{password}}": "no key contains the generated password",
}


@pytest.mark.parametrize("template", REFUSED)
async def test_an_invalid_template_is_reported_and_no_secret_is_written(
    kube: Kube, database: Database, role: str, template: str
) -> None:
    secret = {"name": "delivered", "template": {"data": {"url": template}}}
    await kube.apply("app", name=role, login=True, **(GENERATED | {"connectionSecret": secret}))
    said = await kube.wait_for("app", lambda obj: says(obj, "InvalidSpec", REFUSED[template]), REFUSED[template])
    assert "template.data" in condition(said, "Ready")["message"]
    await database.wait_role(role, lambda row: bool(row["rolcanlogin"]), "login")
    assert await kube.secret("delivered") is None
    assert await database.verifier(role) is None
    await kube.apply("app", name=role, login=True, **GENERATED)
    await kube.wait_ready("app")


async def test_an_invalid_template_does_not_prevent_applying_the_password(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    secret = {"name": "delivered", "template": {"data": {"url": "{nonsense}"}}}
    await kube.apply("app", name=role, password={"secretRef": {"name": "source"}}, connectionSecret=secret)
    await kube.wait_reason("app", "InvalidSpec")
    await database.wait_password(role, "ours")


@pytest.mark.parametrize("key", ["a/b", "ä", "a b", "x" * 254])
async def test_a_key_that_no_secret_can_have_is_refused_by_the_schema(kube: Kube, role: str, key: str) -> None:
    secret = {"name": "delivered", "template": {"data": {key: "{password}"}}}
    with pytest.raises(LocalApiError, match="422"):
        await kube.apply("app", name=role, **(GENERATED | {"connectionSecret": secret}))


@pytest.mark.parametrize("key", ["..x", "."])
async def test_an_invalid_key_that_passes_the_schema_is_refused_on_the_object(kube: Kube, role: str, key: str) -> None:
    await kube.apply("app", name=role, **delivering({"data": {key: "{password}"}}))
    await kube.wait_for("app", lambda obj: says(obj, "InvalidSpec", "not a valid key of a Secret"), "InvalidSpec")
    assert await kube.secret("delivered") is None


@pytest.mark.parametrize("hostile", ["%s:@/?#&=", "{password}", 'a"b\\c', "two\nlines", "日本\u202e", "*"])
async def test_hostile_names_are_unchanged_in_the_secret_and_work_in_its_uri(
    kube: Kube, database: Database, role: str, hostile: str
) -> None:
    name = f"{role} {hostile}"
    await kube.apply("app", name=name, login=True, **GENERATED)
    await kube.wait_ready("app")
    held = await kube.wait_secret("delivered")
    assert held["text"]["username"] == name
    await database.wait_password(name, text(held))
    connection = await asyncpg.connect(held["text"]["uri"])
    assert await connection.fetchval("SELECT session_user::text") == name
    await connection.close()


@pytest.mark.parametrize(("kind", "key"), [("labels", "argocd.k8s.io/x"), ("annotations", "Kubernetes.io/x")])
async def test_reserved_labels_and_annotations_are_refused(kube: Kube, role: str, kind: str, key: str) -> None:
    secret = {"name": "delivered", "template": {"metadata": {kind: {key: "x"}}}}
    await kube.apply("app", name=role, **(GENERATED | {"connectionSecret": secret}))
    await kube.wait_for("app", lambda obj: says(obj, "NotAllowed", key), "refused")
    assert await kube.secret("delivered") is None


@pytest.mark.slow
async def test_metadata_that_the_administrator_forbids_is_refused(stage: Stage) -> None:
    async with running(stage.controller(None, "--forbidden-metadata", "argoproj.io, example.com/private-")):
        for number, key in enumerate(("argoproj.io/x", "sub.argoproj.io/x", "example.com/private-x")):
            secret = {"name": "delivered", "template": {"metadata": {"labels": {key: "x"}}}}
            await stage.kube.apply(f"app-{number}", **(GENERATED | {"connectionSecret": secret}))
            obj = await stage.kube.wait_reason(f"app-{number}", "NotAllowed")
            assert key in condition(obj, "Ready")["message"]
        assert await stage.kube.secret("delivered") is None
        secret = {"name": "delivered", "template": {"metadata": {"labels": {"example.com/public": "x"}}}}
        await stage.kube.apply("app", **(GENERATED | {"connectionSecret": secret}))
        await stage.kube.wait_ready("app")


async def test_a_template_that_needs_the_password_of_a_verifier_is_refused(
    kube: Kube, database: Database, role: str
) -> None:
    ready = make_verifier("known elsewhere", b"0123456789abcdef", 5000)
    await kube.apply_secret("source", password=ready.text)
    secret: Json = {"name": "delivered", "template": {"data": {"url": "{password_url}"}}}
    source = {"secretRef": {"name": "source"}}
    await kube.apply("app", name=role, password=source, connectionSecret=secret)
    await kube.wait_for("app", lambda obj: says(obj, "InvalidSpec", "no clear-text password"), "no clear text")
    assert await kube.secret("delivered") is None
    assert await database.verifier(role) == ready
    await kube.apply("app", name=role, password=source, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    held = await kube.wait_secret("delivered")
    assert not {"password", "pgpass"} & held["text"].keys()


async def deliver_and_spoil(kube: Kube, role: str, action: str) -> Json:
    """Returns the Secret as it was, under drift.policy: Report, before it was deleted or tampered with."""
    before = await deliver(kube, role, drift={"policy": "Report"})
    if action == "deleted":
        await kube.delete_secret("delivered")
    else:
        await kube.patch_secret("delivered", tamper("a value", before))
    return before


@pytest.mark.parametrize("action", ["deleted", "tampered with"])
async def test_policy_report_reports_a_tampered_or_deleted_secret_and_leaves_it(
    kube: Kube, database: Database, role: str, action: str
) -> None:
    before = await deliver_and_spoil(kube, role, action)
    obj = await kube.wait_reason("app", "DriftReported")
    assert condition(obj, "DriftDetected")["status"] == "True"
    assert obj["status"]["lastDrift"]["fields"] == ["connectionSecret"]
    await kube.apply("app", name=role, **GENERATED, drift={"policy": "Report"}, comment="look again")
    await database.wait_role(role, lambda row: row["comment"] == "look again", "comment")
    await kube.wait_for(
        "app",
        lambda obj: (
            obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
            and condition(obj, "Ready")["reason"] == "DriftReported"
        ),
        "DriftReported again",
    )
    held = await kube.secret("delivered")
    assert held is None if action == "deleted" else text(held or {}) == "tampered"
    await database.wait_password(role, text(before))
    await kube.apply("app", name=role, **GENERATED, drift={"policy": "Correct"})
    obj = await kube.wait_ready("app")
    assert condition(obj, "DriftDetected") == {}
    after = await kube.wait_secret("delivered")
    assert text(after) not in (text(before), "tampered")
    await database.wait_password(role, text(after))


def reports(*fields: str) -> Callable[[Json], bool]:
    """Returns a check that drift of these fields is reported, in status too."""

    def is_said(obj: Json) -> bool:
        message = f"since spec.drift.policy is Report: {', '.join(fields)}"
        last = obj.get("status", {}).get("lastDrift", {})
        return says(obj, "DriftReported", message) and last.get("fields") == list(fields)

    return is_said


@pytest.mark.parametrize("action", ["deleted", "tampered with"])
async def test_policy_report_reports_a_changed_password_beside_its_secret(
    kube: Kube, database: Database, role: str, action: str
) -> None:
    before = await deliver_and_spoil(kube, role, action)
    await kube.wait_for("app", reports("connectionSecret"), "the Secret is reported")
    await database.execute(f"ALTER ROLE \"{role}\" PASSWORD 'of somebody'")
    await kube.wait_for("app", reports("password", "connectionSecret"), "both are reported")
    await database.wait_password(role, "of somebody")
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    await kube.wait_ready("app")
    after = await kube.wait_secret("delivered")
    assert text(after) not in (text(before), "tampered", "of somebody")
    await database.wait_password(role, text(after))


async def test_a_reported_password_stays_reported_when_its_secret_is_changed(
    kube: Kube, database: Database, role: str
) -> None:
    before = await deliver(kube, role, drift={"policy": "Report"})
    await database.execute(f"ALTER ROLE \"{role}\" PASSWORD 'of somebody'")
    await kube.wait_for("app", reports("password"), "the password is reported")
    await kube.patch_secret("delivered", tamper("a value", before))
    await kube.wait_for("app", reports("password", "connectionSecret"), "both are reported")


@pytest.mark.parametrize("relabelled", ["source", "delivered"])
async def test_a_reported_password_stays_reported_when_its_secret_is_only_relabelled(
    kube: Kube, database: Database, role: str, relabelled: str
) -> None:
    password: Json = {"generate": {}}
    if relabelled == "source":
        await kube.apply_secret("source", password="ours")
        password = {"secretRef": {"name": "source"}}
    await deliver(kube, role, password=password, drift={"policy": "Report"})
    await database.execute(f"ALTER ROLE \"{role}\" PASSWORD 'of somebody'")
    await kube.wait_for("app", reports("password"), "the password is reported")
    held = await kube.patch_secret(relabelled, {"metadata": {"labels": {"seen": "yes"}}})
    sql = f"SELECT position('{version(held)}' IN connection_secret) > 0 FROM pgrole.claim WHERE role_name = '{role}'"
    await database.wait_value(sql, True)
    await kube.wait_for("app", reports("password"), "the password is reported")
    await database.wait_password(role, "of somebody")


@pytest.mark.parametrize("action", ["deleted", "tampered with"])
async def test_a_requested_rotation_replaces_a_secret_whose_drift_is_reported(
    kube: Kube, database: Database, role: str, action: str
) -> None:
    before = await deliver_and_spoil(kube, role, action)
    await kube.wait_reason("app", "DriftReported")
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    obj = await kube.wait_ready("app")
    assert condition(obj, "DriftDetected") == {}
    after = await kube.wait_secret("delivered")
    assert text(after) not in (text(before), "tampered")
    await database.wait_password(role, text(after))
    assert await kube.events("SecretRestored") == []


async def test_policy_report_applies_a_changed_template(kube: Kube, database: Database, role: str) -> None:
    before = await deliver(kube, role, drift={"policy": "Report"})
    secret = {"name": "delivered", "template": {"data": {"only": "{password}"}}}
    await kube.apply("app", name=role, **(GENERATED | {"connectionSecret": secret}), drift={"policy": "Report"})
    after = await kube.wait_secret("delivered", lambda held: "only" in held["text"], "template")
    assert after["text"] == {"only": text(before)}
    await kube.wait_for("app", is_ready, "Ready")


async def test_two_objects_that_use_each_others_secrets_settle(kube: Kube, database: Database, role: str) -> None:
    """Each of two objects has the password that the other one delivers."""
    await kube.apply_secret("seed", password="round and round")
    await deliver(kube, role, password={"secretRef": {"name": "seed"}})
    other = {"password": {"secretRef": {"name": "delivered"}}, "connectionSecret": {"name": "other"}}
    await kube.apply("other", name=f"{role}_other", **other)
    await kube.wait_ready("other")
    await kube.apply("app", name=role, **(GENERATED | {"password": {"secretRef": {"name": "other"}}}))
    await kube.wait_ready("app")
    await kube.patch_secret("other", {"metadata": {"labels": {"seen": "yes"}}})
    await wait_known(kube, database, f"{role}_other", "other")
    await kube.wait_ready("app")
    held = [version(await kube.secret(name)) for name in ("delivered", "other")]
    await kube.apply("app", name=role, **(GENERATED | {"password": {"secretRef": {"name": "other"}}}), comment="again")
    await database.wait_role(role, lambda row: row["comment"] == "again", "comment")
    await kube.wait_ready("app")
    assert [version(await kube.secret(name)) for name in ("delivered", "other")] == held


async def test_a_forged_rotation_time_breaks_nothing(kube: Kube, database: Database, role: str) -> None:
    """Anyone who may write the Secret can compute a matching hash. A time further ahead than the next rotation is no
    reason to wait for it.
    """
    before = await deliver(kube, role, password={"generate": {"rotateEvery": "87600h"}})
    stamp = RotationStamp(datetime(9999, 12, 31, tzinfo=UTC))
    address = Address("127.0.0.1", 1, "postgres", "prefer")
    wanted = DesiredSecret("delivered")
    forged = render(wanted, username=role, password="forged0", address=address, stamp=stamp, salt=b"0" * 16)
    data = {key: b64encode(value).decode() for key, value in forged.data.items()}
    await kube.patch_secret("delivered", {"metadata": {"annotations": dict(forged.annotations)}, "data": data})
    after = await kube.wait_secret("delivered", lambda one: text(one) not in ("forged0", text(before)), "a rotation")
    await database.wait_password(role, text(after))
    await kube.apply("app", name=role, **GENERATED, comment="look again")
    await kube.wait_ready("app")
    await database.wait_role(role, lambda row: row["comment"] == "look again", "comment")


async def test_a_secret_is_written_once_while_the_database_refuses_its_password(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply("app", name=role)
    await kube.wait_ready("app")
    await database.execute(f"BEGIN; SELECT FROM pg_authid WHERE rolname = '{role}' FOR UPDATE")
    await kube.apply("app", name=role, **GENERATED)
    before = await kube.wait_secret("delivered")
    await kube.wait_for("app", lambda obj: says(obj, "DatabaseError"), "DatabaseError")
    await database.execute("ROLLBACK")
    await kube.wait_ready("app")
    assert version(await kube.secret("delivered")) == version(before)
    await database.wait_password(role, text(before))


async def test_a_secret_is_written_once_while_a_drift_of_its_password_is_reported(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply_secret("source", password="ours")
    asked: Json = {"name": role, "password": {"secretRef": {"name": "source"}}, "drift": {"policy": "Report"}}
    await kube.apply("app", **asked, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE \"{role}\" PASSWORD 'another'")
    await kube.wait_reason("app", "DriftReported")
    template = {"data": {"url": "{username}:{password}"}}
    await kube.apply("app", **asked, connectionSecret={"name": "delivered", "template": template})
    await kube.wait_secret("delivered", lambda held: set(held["text"]) == {"url"}, "the new template")
    before = await wait_known(kube, database, role)
    await database.execute(f'ALTER ROLE "{role}" CONNECTION LIMIT 7')
    await kube.wait_for("app", lambda obj: "connectionLimit" in obj["status"]["lastDrift"]["fields"], "its drift")
    assert version(await kube.secret("delivered")) == version(before)


async def test_secrets_that_claim_to_be_former_ones_delay_no_password_and_are_deleted(
    kube: Kube, database: Database, role: str
) -> None:
    obj = await kube.apply("app", name=role)
    await kube.wait_ready("app")
    owner = {key: obj[key] for key in ("apiVersion", "kind")} | {key: obj["metadata"][key] for key in ("name", "uid")}
    former = [f"former-{number}" for number in range(STALE + 1)]
    for name in former:
        await kube.apply_secret(name, x="y")
        forged = {"annotations": {"pgrole.dev/hash": "v1:eHh4eHh4eHh4eHh4eHh4eA==:x"}, "ownerReferences": [owner]}
        await kube.patch_secret(name, {"metadata": forged})
    assert text(await deliver(kube, role))
    for name in former:
        await kube.wait_no_secret(name)
