"""Secrets with the real API server: what is written, left alone, refused, and never shown."""

import json
import logging
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pgrole_controller.core.connection_secret import SecretContent
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.resource import APPLY, MERGE_PATCH, PGROLES, SECRETS
from pgrole_controller.kube.secrets import (
    NotWritable,
    OwnerReference,
    Secret,
    delete_secret,
    read_secret,
    stored_of,
    write_secret,
)
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.apiserver import ApiServer
from tests.fake_apiserver import FakeApiServer, plain, status_body

PASSWORD = "correct-horse/battery+staple"
DATA = {"password": PASSWORD.encode(), "pgpass": f"*:5432:*:*:{PASSWORD}\n".encode(), "raw": b"\x00\xff\xfe"}
LABELS = {"team": "shop", "tier": "db"}
ANNOTATIONS = {"pgrole.dev/hash": "h1", "note": "made here"}


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    async with Client.connect(str(api_server.kubeconfig)) as connected:
        yield connected


@pytest.fixture
async def owner(client: Client, namespace: str) -> Stored:
    return await make_owner(client, namespace)


async def make_owner(client: Client, namespace: str, name: str = "app") -> Stored:
    body = {"apiVersion": PGROLES.api_version, "kind": "PgRole", "metadata": {"name": name}, "spec": {}}
    return pack(json.loads(await client.request("POST", PGROLES.path(namespace), body=body)))


@pytest.fixture
def key(namespace: str) -> Key:
    return Key(namespace, "app-connection")


async def write(
    client: Client,
    key: Key,
    owner: Stored,
    seen: Secret | None,
    labels: Mapping[str, str] = LABELS,
    annotations: Mapping[str, str] = ANNOTATIONS,
    data: Mapping[str, bytes] = DATA,
) -> Secret:
    return await write_secret(client, key, owner, SecretContent(labels, annotations, data), seen)


async def read(client: Client, key: Key) -> Secret:
    secret = await read_secret(client, key)
    assert secret is not None
    return secret


async def raw(client: Client, key: Key) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await client.request("GET", SECRETS.path(*key)))
    return found


async def edit(client: Client, key: Key, body: dict[str, Any], manager: str = "kubectl-edit") -> None:
    """Changes a Secret as another client."""
    await client.request(
        "PATCH", SECRETS.path(*key), query={"fieldManager": manager}, body=body, content_type=MERGE_PATCH
    )


async def make(client: Client, key: Key, body: dict[str, Any]) -> Secret:
    """Creates a Secret as another client."""
    await client.request("POST", SECRETS.path(key.namespace), body=body | {"metadata": {"name": key.name}})
    return await read(client, key)


def reference(owner: Stored) -> OwnerReference:
    return OwnerReference("PgRole", PGROLES.api_version, owner.key.name, owner.uid, controller=True)


def shows(error: BaseException, *values: str) -> list[str]:
    """Returns which of the values, or of their base64, are in the error, its causes, or its fields."""
    texts, at = ["".join(traceback.format_exception(error))], error
    while True:
        texts.append(repr(vars(at)) + repr(at.args))
        following = at.__cause__ or at.__context__
        if following is None:
            break
        at = following
    said = "".join(texts)
    return [value for value in values if value in said or b64encode(value.encode()).decode() in said]


async def test_a_written_secret_is_read_back_as_requested(client: Client, key: Key, owner: Stored) -> None:
    assert await read_secret(client, key) is None
    written = await write(client, key, owner, None)
    assert written == await read(client, key)
    assert (written.key, written.type, written.immutable, written.terminating) == (key, "Opaque", False, False)
    assert (written.labels, written.annotations, written.data) == (LABELS, ANNOTATIONS, DATA)
    assert (await raw(client, key))["metadata"]["ownerReferences"] == [
        {
            "apiVersion": PGROLES.api_version,
            "kind": "PgRole",
            "name": "app",
            "uid": owner.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


async def test_a_secret_that_appeared_meanwhile_is_not_touched(client: Client, key: Key, owner: Stored) -> None:
    theirs = await make(client, key, {"data": {"k": "dg=="}})
    with pytest.raises(ApiError) as refused:
        await write(client, key, owner, None)
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert await read(client, key) == theirs


async def test_writing_the_same_again_makes_no_new_version(client: Client, key: Key, owner: Stored) -> None:
    written = await write(client, key, owner, None)
    assert await write(client, key, owner, written) == written


async def test_a_secret_that_changed_since_it_was_read_is_not_touched(client: Client, key: Key, owner: Stored) -> None:
    seen = await write(client, key, owner, None)
    await edit(client, key, {"metadata": {"labels": {"theirs": "x"}}})
    changed = await read(client, key)
    with pytest.raises(ApiError) as refused:
        await write(client, key, owner, seen, labels={})
    assert refused.value.status == 409
    assert await read(client, key) == changed


async def test_a_deleted_secret_is_not_created_again_and_its_replacement_is_not_touched(
    client: Client, key: Key, owner: Stored
) -> None:
    seen = await write(client, key, owner, None)
    assert await delete_secret(client, key, seen.uid, seen.version)
    with pytest.raises(ApiError) as gone:
        await write(client, key, owner, seen)
    assert gone.value.status == 404
    assert await read_secret(client, key) is None
    theirs = await make(client, key, {"data": {"k": "dg=="}})
    with pytest.raises(ApiError) as refused:
        await write(client, key, owner, seen)
    assert refused.value.status == 409
    assert await read(client, key) == theirs


async def test_keys_that_another_client_added_changed_or_removed_are_corrected(
    client: Client, key: Key, owner: Stored
) -> None:
    await write(client, key, owner, None)
    await edit(client, key, {"data": {"theirs": "dg==", "password": "dg==", "pgpass": None}})
    repaired = await write(client, key, owner, await read(client, key))
    assert repaired.data == DATA
    assert (await write(client, key, owner, repaired, data={"only": b""})).data == {"only": b""}
    assert (await write(client, key, owner, await read(client, key), data={})).data == {}


async def test_labels_and_annotations_no_longer_declared_are_removed_and_those_of_others_stay(
    client: Client, key: Key, owner: Stored
) -> None:
    written = await write(client, key, owner, None)
    assert (written.own_labels, written.own_annotations) == (frozenset(LABELS), frozenset(ANNOTATIONS))
    theirs = {"labels": {"theirs": "x"}, "annotations": {"theirs": "y"}}
    await edit(client, key, {"metadata": theirs})
    second = await write(client, key, owner, await read(client, key), labels={"team": "web"}, annotations={"a": "b"})
    assert second.labels == {"team": "web", "theirs": "x"}
    assert second.annotations == {"a": "b", "theirs": "y"}
    third = await write(client, key, owner, second, labels={"new": "z"}, annotations={})
    assert third.labels == {"new": "z", "theirs": "x"}
    assert third.annotations == {"theirs": "y"}
    last = await write(client, key, owner, third, labels={}, annotations={})
    assert {"labels": last.labels, "annotations": last.annotations} == theirs


async def test_a_label_that_another_client_took_over_is_corrected_only_while_it_is_declared(
    client: Client, key: Key, owner: Stored
) -> None:
    await write(client, key, owner, None)
    await edit(client, key, {"metadata": {"labels": {"team": "theirs"}}})
    repaired = await write(client, key, owner, await read(client, key))
    assert repaired.labels == LABELS
    await edit(client, key, {"metadata": {"labels": {"team": "theirs"}}})
    left = await write(client, key, owner, await read(client, key), labels={})
    assert left.labels == {"team": "theirs"}


async def test_a_label_that_another_client_applies_too_stays(client: Client, key: Key, owner: Stored) -> None:
    await write(client, key, owner, None)
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": key.name, "labels": {"team": "shop"}}}
    await client.request("PATCH", SECRETS.path(*key), query={"fieldManager": "argo"}, body=theirs, content_type=APPLY)
    shared = await read(client, key)
    assert shared.own_labels == {"tier"}
    assert (await write(client, key, owner, shared, labels={})).labels == {"team": "shop"}


async def test_another_objects_owner_reference_is_left_unchanged(client: Client, key: Key, owner: Stored) -> None:
    other = {"apiVersion": "example.dev/v1", "kind": "Widget", "name": "w", "uid": "u-w", "blockOwnerDeletion": True}
    theirs = await make(client, key, {})
    await edit(client, key, {"metadata": {"ownerReferences": [other]}})
    written = await write(client, key, owner, await read(client, key))
    assert written.uid == theirs.uid
    assert set(written.owners) == {OwnerReference("Widget", "example.dev/v1", "w", "u-w"), reference(owner)}
    assert other in (await raw(client, key))["metadata"]["ownerReferences"]


async def test_an_owner_reference_to_an_earlier_object_of_the_same_name_is_replaced(
    client: Client, key: Key, owner: Stored
) -> None:
    await write(client, key, owner, None)
    sibling = await make_owner(client, key.namespace, "sibling")
    body = {"apiVersion": PGROLES.api_version, "kind": "PgRole", "name": "sibling", "uid": sibling.uid}
    references = (await raw(client, key))["metadata"]["ownerReferences"]
    await edit(client, key, {"metadata": {"ownerReferences": [*references, body]}})
    await client.request("DELETE", PGROLES.path(*owner.key))
    again = await make_owner(client, key.namespace)
    assert again.uid != owner.uid
    written = await write(client, key, again, await read(client, key))
    beside = OwnerReference("PgRole", PGROLES.api_version, "sibling", sibling.uid)
    assert set(written.owners) == {beside, reference(again)}


async def test_a_removed_or_weakened_owner_reference_is_set_again(client: Client, key: Key, owner: Stored) -> None:
    await write(client, key, owner, None)
    await edit(client, key, {"metadata": {"ownerReferences": None}})
    repaired = await write(client, key, owner, await read(client, key))
    assert repaired.owners == (reference(owner),)
    weak = {"apiVersion": "pgrole.dev/v1", "kind": "PgRole", "name": "app", "uid": owner.uid}
    await edit(client, key, {"metadata": {"ownerReferences": [weak]}})
    assert (await write(client, key, owner, await read(client, key))).owners == (reference(owner),)


async def test_a_secret_that_only_its_author_can_change_is_refused_with_a_remedy(
    client: Client, key: Key, owner: Stored
) -> None:
    foreign = await make(client, Key(key.namespace, "typed"), {"type": "example.dev/other"})
    with pytest.raises(NotWritable, match=r"typed is of type example.dev/other, .*: delete it"):
        await write(client, foreign.key, owner, foreign)
    await write(client, key, owner, None)
    sibling = await make_owner(client, key.namespace, "sibling")
    controlled = await read(client, key)
    with pytest.raises(NotWritable, match="controlled by PgRole app: use another name"):
        await write(client, key, sibling, controlled)
    await edit(client, key, {"immutable": True})
    immutable = await read(client, key)
    assert immutable.immutable
    with pytest.raises(NotWritable, match="is immutable: delete it"):
        await write(client, key, owner, immutable)
    assert await read(client, key) == immutable


async def test_only_the_exact_secret_that_was_read_is_deleted(client: Client, key: Key, owner: Stored) -> None:
    seen = await write(client, key, owner, None)
    await edit(client, key, {"metadata": {"labels": {"theirs": "x"}}})
    changed = await read(client, key)
    assert not await delete_secret(client, key, seen.uid, seen.version)
    assert not await delete_secret(client, key, "00000000-0000-4000-8000-000000000000", changed.version)
    assert await read(client, key) == changed
    assert await delete_secret(client, key, changed.uid, changed.version)
    assert await read_secret(client, key) is None
    assert not await delete_secret(client, key, changed.uid, changed.version)


async def test_a_terminating_secret_is_recognized(client: Client, key: Key, owner: Stored) -> None:
    await write(client, key, owner, None)
    await edit(client, key, {"metadata": {"finalizers": ["example.dev/held"]}})
    held = await read(client, key)
    assert await delete_secret(client, key, held.uid, held.version)
    going = await read(client, key)
    assert going.terminating
    assert stored_of(going).object()["metadata"]["deletionTimestamp"] == going.deletion_timestamp
    await edit(client, key, {"metadata": {"finalizers": None}})


async def test_the_store_keeps_the_owner_of_a_written_secret_but_not_its_content(
    client: Client, key: Key, owner: Stored
) -> None:
    written = await write(client, key, owner, None)
    stored = stored_of(written)
    assert (stored.key, stored.uid, stored.resource_version) == (key, written.uid, written.version)
    kept = stored.object()
    assert list(kept) == ["metadata"]
    assert kept["metadata"]["annotations"] == {"pgrole.dev/hash": "h1"}
    assert [one["uid"] for one in kept["metadata"]["ownerReferences"]] == [owner.uid]
    assert sorted(kept["metadata"]) == ["annotations", "ownerReferences"]


async def test_the_representation_of_a_secret_does_not_show_its_content(client: Client, key: Key) -> None:
    copy = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"stringData":{{"password":"{PASSWORD}"}}}}'}
    await make(client, key, {"data": {"password": b64encode(PASSWORD.encode()).decode()}})
    await edit(client, key, {"metadata": {"annotations": {**copy, "note": "x"}}})
    secret = await read(client, key)
    assert secret.data == {"password": PASSWORD.encode()}
    assert secret.annotations == {"note": "x"}
    assert PASSWORD not in repr(secret)
    assert b64encode(PASSWORD.encode()).decode() not in repr(secret)


@pytest.mark.parametrize("exists", [False, True])
async def test_a_refusal_of_the_api_server_shows_its_reason_without_the_content(
    client: Client, key: Key, owner: Stored, exists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = await write(client, key, owner, None, data={"old": b"old-content-of-it"}) if exists else None
    hidden = f"{PASSWORD} is no label"
    with caplog.at_level(logging.DEBUG, "pgrole_controller"), pytest.raises(ApiError) as refused:
        await write(client, key, owner, seen, labels={"team": hidden}, data={"uri": hidden.encode(), "bad key": b"v"})
    assert refused.value.status == 422
    assert refused.value.reason == "Invalid"
    assert shows(refused.value, hidden, PASSWORD) == []
    assert PASSWORD not in caplog.text


async def test_the_error_omits_a_patch_that_the_api_server_quotes(client: Client, key: Key, owner: Stored) -> None:
    seen = await write(client, key, owner, None)
    odd: Any = {"team": 7}  # makes the real API server quote the whole patch
    with pytest.raises(ApiError) as refused:
        await write(client, key, owner, seen, labels=odd, data={**DATA, "uri": f"postgresql://{PASSWORD}".encode()})
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert shows(refused.value, PASSWORD, f"postgresql://{PASSWORD}") == []


LONG = "".join(f"{number:04}" for number in range(3_000))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PASSWORD, id="text"),
        pytest.param(b64encode(PASSWORD.encode()).decode(), id="base64"),
        pytest.param(json.dumps(f'"{PASSWORD}"\n{PASSWORD}'), id="escaped"),
        pytest.param(b64encode(PASSWORD.encode()).decode()[:20], id="the beginning of it"),
        pytest.param("s3 " * 160 + "s3cr", id="a short one"),
        pytest.param(LONG, id="a long one"),
    ],
)
@pytest.mark.parametrize("verb", ["post", "patch"])
async def test_the_error_omits_content_that_an_admission_webhook_repeats(tmp_path: Path, verb: Any, text: str) -> None:
    data = {"password": PASSWORD.encode(), "escaped": f'"{PASSWORD}"\n{PASSWORD}'.encode(), "pin": b"s3cr"}
    data["long"] = LONG.encode()
    fake = FakeApiServer(SECRETS)
    fake.always[verb] = plain(403, json.dumps(status_body(403, f"No{text[:40]}", f"denied: {text} is not liked")))
    key = Key("shop", "a")
    seen = Secret(key, "u", "7", "Opaque", False, {}, {}, (), {}) if verb == "patch" else None
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        with pytest.raises(ApiError) as refused:
            await write(client, key, OWNER, seen, data=data)
    assert refused.value.status == 403
    assert "denied" not in str(refused.value)
    windows = [value.decode()[at : at + 8] for value in data.values() for at in range(len(value) - 7)]
    assert shows(refused.value, "s3cr", PASSWORD[:7]) == []
    assert [window for window in windows if window in str(refused.value)] == []


OWNER = pack(
    {
        "apiVersion": PGROLES.api_version,
        "kind": "PgRole",
        "metadata": {"namespace": "shop", "name": "app", "uid": "u-app", "resourceVersion": "1"},
    }
)


@pytest.mark.parametrize("answer", [f'{{"data": {{"password": "{PASSWORD}"', "[]", "{}", '{"metadata": {}}', "\ufffd"])
async def test_an_answer_that_is_not_a_secret_causes_an_error_without_its_content(tmp_path: Path, answer: str) -> None:
    fake = FakeApiServer(SECRETS)
    fake.always["post"] = plain(200, answer)
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        with pytest.raises(BadStream, match="the API server's answer is not a Secret") as bad:
            await write(client, Key("shop", "a"), OWNER, None)
    assert shows(bad.value, PASSWORD) == []


async def test_a_write_to_an_unreachable_server_causes_an_error_without_the_content(tmp_path: Path) -> None:
    fake = FakeApiServer(SECRETS)
    async with Client.connect(await kubeconfig_of(fake, tmp_path)) as client:
        with pytest.raises(Unreachable, match=r"POST .*/secrets: ") as gone:
            await write(client, Key("shop", "a"), OWNER, None)
    assert shows(gone.value, PASSWORD) == []


async def kubeconfig_of(fake: FakeApiServer, folder: Path) -> str:
    """A kubeconfig for a server that no longer listens."""
    async with fake.serve(folder / "k"):
        return str(folder / "k")


async def test_an_unreachable_server_is_not_mistaken_for_a_missing_secret(tmp_path: Path) -> None:
    async with Client.connect(await kubeconfig_of(FakeApiServer(SECRETS), tmp_path)) as client:
        with pytest.raises(Unreachable):
            await read_secret(client, Key("shop", "a"))
