"""The CRD in a real API server: what it admits, what it rejects with which message, and its defaults."""

import json
import ssl
from typing import Any

import aiohttp
import pytest

from pgrole_controller.api.crd import crd
from pgrole_controller.api.meta import ObjectMeta
from pgrole_controller.api.pgrole import PgRole, PgRoleSpec
from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.commands.manifest_files import Manifests, parse_manifests
from pgrole_controller.local.apiserver import ApiServer, LocalApiError

_DEFAULTS = {
    "serverRef": {"name": "default"},
    "login": False,
    "superuser": False,
    "createdb": False,
    "createrole": False,
    "inherit": True,
    "replication": False,
    "bypassrls": False,
    "connectionLimit": -1,
    "drift": {"policy": "Correct"},
    "adopt": False,
    "deletionPolicy": "Retain",
    "reassignOwnedTo": "",
    "terminateSessions": False,
    "suspend": False,
}


class ObjectKindCase:
    """PgRoles in the namespace of one test."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"

    async def create(self, spec: dict[str, Any], name: str = "app", **top: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name},
            "spec": spec,
            **top,
        }
        return await self._server.request("POST", self._path, body)

    async def refusal(self, spec: dict[str, Any], name: str = "app") -> str:
        with pytest.raises(LocalApiError) as caught:
            await self.create(spec, name)
        assert caught.value.status == 422
        return str(caught.value)

    async def patch(self, body: dict[str, Any], name: str = "app", subresource: str = "") -> dict[str, Any]:
        return await self._server.request(
            "PATCH", f"{self._path}/{name}{subresource}", body, content_type="application/merge-patch+json"
        )

    async def refused_patch(self, spec: dict[str, Any], name: str = "app") -> str:
        with pytest.raises(LocalApiError) as caught:
            await self.patch({"spec": spec}, name)
        assert caught.value.status == 422
        return str(caught.value)


@pytest.fixture
def kind(api_server: ApiServer, namespace: str) -> ObjectKindCase:
    return ObjectKindCase(api_server, namespace)


async def test_the_crd_is_established_and_served_unchanged(api_server: ApiServer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pgroles.pgrole.dev"
    served = await api_server.request("GET", path)
    conditions = {condition["type"]: condition["status"] for condition in served["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert served["spec"]["versions"] == crd()["spec"]["versions"]


async def test_an_object_written_by_the_models_passes_strict_validation(api_server: ApiServer, namespace: str) -> None:
    answer = await api_server.request(
        "POST",
        f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles",
        PgRole(metadata=ObjectMeta(name="app"), spec=PgRoleSpec(login=True)).model_dump(
            by_alias=True, exclude_none=True, mode="json"
        ),
        query={"fieldValidation": "Strict"},
    )
    assert answer["spec"]["login"]


async def test_a_new_object_has_the_defaults_and_a_status_that_is_not_current(kind: ObjectKindCase) -> None:
    made = await kind.create({})
    assert made["spec"] == _DEFAULTS
    assert made["status"] == {"observedGeneration": -1}


async def test_api_server_and_models_have_the_same_defaults(kind: ObjectKindCase) -> None:
    made = PgRole.model_validate(await kind.create({}))
    assert made.spec == PgRoleSpec()


@pytest.mark.parametrize("spec", [{"serverRef": {}}, {"serverRef": None}, {"drift": {}}, {"drift": None}])
async def test_an_empty_or_null_group_of_fields_gets_its_defaults(kind: ObjectKindCase, spec: dict[str, Any]) -> None:
    assert (await kind.create(spec))["spec"] == _DEFAULTS


async def test_an_unknown_field_is_pruned(kind: ObjectKindCase) -> None:
    assert (await kind.create({"later": 1}))["spec"] == _DEFAULTS


@pytest.mark.parametrize(
    "name", ["é" * 31 + "x", "x" * 63, "😀" * 15 + "xyz", "a\"b'c\\", "a\nb", " ", "Public", "pgx", "PG_X", "$$;--"]
)
async def test_a_name_that_postgresql_accepts_is_admitted(kind: ObjectKindCase, name: str) -> None:
    assert PgRole.model_validate(await kind.create({"name": name})).role_name == name


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"name": "é" * 32}, "spec.name must have 1 to 63 bytes (UTF-8): shorten it"),
        ({"name": "😀" * 16}, "spec.name must have 1 to 63 bytes (UTF-8): shorten it"),
        ({"name": "x" * 64}, "spec.name: Too long: may not be more than 63 bytes"),
        ({"name": ""}, "spec.name in body should be at least 1 chars long"),
        ({"name": "a\x00b"}, "spec.name must not contain NUL"),
        ({"name": "pg_monitor"}, 'spec.name must not begin with "pg_"'),
        ({"name": "public"}, 'spec.name must not be "public" or "none"'),
        ({"name": "none"}, 'spec.name must not be "public" or "none"'),
        ({"comment": "a\x00"}, "spec.comment must not contain NUL"),
        ({"password": {}}, "exactly one of secretRef, generate and disabled"),
        ({"password": {"disabled": False}}, "spec.password.disabled: Unsupported value"),
        ({"password": {"disabled": True, "secretRef": {"name": "a"}}}, "exactly one of"),
        ({"password": {"secretRef": {"name": "A"}}}, "spec.password.secretRef.name"),
        ({"password": {"secretRef": {"name": "a", "key": "a/b"}}}, "spec.password.secretRef.key"),
        ({"password": {"generate": {}}}, "requires spec.connectionSecret"),
        ({"password": {"generate": {"length": 8}}, "connectionSecret": {"name": "a"}}, "greater than or equal to 16"),
        ({"password": {"generate": {"rotateEvery": "1d"}}, "connectionSecret": {"name": "a"}}, "rotateEvery"),
        ({"password": {"generate": {"rotateEvery": "10ms"}}, "connectionSecret": {"name": "a"}}, "1s to 87600h"),
        ({"password": {"generate": {"rotateEvery": "9999999999h"}}, "connectionSecret": {"name": "a"}}, "rotateEvery"),
        (
            {"password": {"generate": {}}, "connectionSecret": {"name": "a"}, "drift": {"ignore": ["password"]}},
            "must not list password while",
        ),
        ({"connectionSecret": {}}, "spec.connectionSecret.name: Required value"),
        ({"connectionSecret": {"name": "a", "template": {"data": {"a b": "x"}}}}, "a key must consist of letters"),
        ({"reassignOwnedTo": "x", "deletionPolicy": "Retain"}, "require spec.deletionPolicy: Drop; set it"),
        ({"terminateSessions": True}, "require spec.deletionPolicy: Drop"),
        ({"reassignOwnedTo": "é" * 32, "deletionPolicy": "Drop"}, "63 bytes"),
        ({"comment": "x" * 1025}, "spec.comment: Too long"),
        ({"connectionLimit": -2}, "spec.connectionLimit in body should be greater than or equal to -1"),
        ({"connectionLimit": 2**31}, "spec.connectionLimit in body should be less than or equal to 2147483647"),
        ({"validUntil": "2027-01-01"}, "spec.validUntil in body must be of type date-time"),
        ({"validUntil": "infinity"}, "spec.validUntil in body must be of type date-time"),
        ({"validUntil": "2027-01-01T00:00:00+99:99"}, "spec.validUntil must be an RFC 3339 date-time"),
        ({"validUntil": "0000-01-01T00:00:00Z"}, "with a time zone, in the years 1 to 9999"),
        ({"validUntil": "0001-01-01T00:00:00+14:00"}, "with a time zone, in the years 1 to 9999"),
        ({"validUntil": "9999-12-31T23:59:59-14:00"}, "with a time zone, in the years 1 to 9999"),
        ({"validUntil": f"2027-01-01T00:00:00.{'0' * 44}Z"}, "spec.validUntil: Too long"),
        ({"serverRef": {"name": ""}}, "spec.serverRef.name in body should be at least 1 chars long"),
        ({"serverRef": {"name": "A/b"}}, "spec.serverRef.name in body should match"),
        ({"drift": {"policy": "Ignore"}}, 'spec.drift.policy: Unsupported value: "Ignore"'),
        ({"deletionPolicy": "Delete"}, 'spec.deletionPolicy: Unsupported value: "Delete"'),
        ({"login": "yes"}, "spec.login in body must be of type boolean"),
    ],
)
async def test_an_invalid_spec_is_rejected_with_the_message_of_its_rule(
    kind: ObjectKindCase, spec: dict[str, Any], says: str
) -> None:
    assert says in await kind.refusal(spec)


@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999999Z",
        "2027-01-01T00:00:00.123456789+02:00",
        "2027-01-01T00:00:00,5+24:60",
        "2027-01-01T00:00:00-00:60",
    ],
)
async def test_a_time_that_the_models_can_represent_is_admitted(kind: ObjectKindCase, moment: str) -> None:
    assert PgRole.model_validate(await kind.create({"validUntil": moment})).spec.valid_until is not None


@pytest.mark.parametrize("name", ["public", "none", "x" * 64])
async def test_an_object_whose_own_name_cannot_be_a_role_needs_spec_name(kind: ObjectKindCase, name: str) -> None:
    assert "metadata.name cannot be used as the name of the role" in await kind.refusal({}, name)
    assert (await kind.create({"name": "fine"}, name))["spec"]["name"] == "fine"


async def test_an_object_whose_own_name_has_63_bytes_needs_no_spec_name(kind: ObjectKindCase) -> None:
    assert await kind.create({}, "x" * 63)


async def test_an_object_without_a_spec_is_refused(api_server: ApiServer, namespace: str) -> None:
    body = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": {"name": "app"}}
    with pytest.raises(LocalApiError, match="spec: Required value"):
        await api_server.request("POST", f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles", body)


@pytest.mark.parametrize(
    ("before", "after"),
    [({"name": "a"}, {"name": "b"}), ({}, {"name": "a"}), ({"name": "a"}, {"name": None}), ({}, {"name": "app"})],
    ids=["changed", "added", "removed", "added as what it is"],
)
async def test_the_name_is_immutable(kind: ObjectKindCase, before: dict[str, Any], after: dict[str, Any]) -> None:
    await kind.create(before)
    assert (
        "spec.name is immutable and cannot be added or removed: to use another name, create another PgRole"
        in await kind.refused_patch(after)
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"name": "main"}),
        ({"serverRef": {"name": "main"}}, {"name": "other"}),
        ({"serverRef": {"name": "main"}}, None),
    ],
    ids=["default left", "changed", "removed"],
)
async def test_the_server_is_immutable(
    kind: ObjectKindCase, before: dict[str, Any], after: dict[str, Any] | None
) -> None:
    await kind.create(before)
    assert "spec.serverRef is immutable: to use another server, create another PgRole" in await kind.refused_patch(
        {"serverRef": after}
    )


async def test_the_default_server_may_be_stated_or_omitted(kind: ObjectKindCase) -> None:
    await kind.create({})
    assert (await kind.patch({"spec": {"serverRef": {"name": "default"}}}))["spec"] == _DEFAULTS
    assert (await kind.patch({"spec": {"serverRef": None}}))["spec"] == _DEFAULTS


async def test_the_deletion_policy_can_become_retain_whatever_else_is_declared(kind: ObjectKindCase) -> None:
    await kind.create({"deletionPolicy": "Drop", "reassignOwnedTo": "heir", "terminateSessions": True})
    assert (await kind.patch({"spec": {"deletionPolicy": "Retain"}}))["spec"]["reassignOwnedTo"] == "heir"
    assert (await kind.patch({"spec": {"comment": "still"}}))["spec"]["comment"] == "still"


async def test_every_other_field_can_be_changed(kind: ObjectKindCase) -> None:
    await kind.create({"name": "a"})
    spec = {
        "login": True,
        "superuser": True,
        "createdb": True,
        "createrole": True,
        "inherit": False,
        "replication": True,
        "bypassrls": True,
        "connectionLimit": 2**31 - 1,
        "validUntil": "2027-01-01T00:00:00Z",
        "comment": "x" * 1024,
        "drift": {"policy": "Report"},
        "adopt": True,
        "deletionPolicy": "Drop",
        "reassignOwnedTo": "heir",
        "terminateSessions": True,
        "suspend": True,
        "password": {"generate": {"length": 40, "rotateEvery": "1h30m"}},
        "connectionSecret": {
            "name": "app",
            "template": {"metadata": {"labels": {"team": "shop"}, "annotations": {}}, "data": {"URL": "{host}"}},
        },
    }
    changed = await kind.patch({"spec": spec})
    assert changed["spec"] == {**spec, "name": "a", "serverRef": {"name": "default"}}


async def test_a_status_written_by_the_controller_is_stored_unchanged(kind: ObjectKindCase) -> None:
    await kind.create({})
    condition = {
        "status": "False",
        "reason": "RoleExists",
        "message": "x" * 2048,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    status = {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", **condition}, {"type": "Stalled", **condition}],
        "role": {"name": "é" * 31 + "x", "oid": 2**32 - 1, "applied": "sha256:" + "0" * 64},
        "server": {"name": "default", "systemIdentifier": str(2**64 - 1)},
        "lastDrift": {"time": "2026-01-01T00:00:00Z", "fields": ["superuser", "validUntil"], "corrected": False},
        "driftCount": 4,
    }
    changed = await kind.patch({"status": status}, subresource="/status")
    assert changed["status"] == status
    assert PgRole.model_validate(changed).status is not None


async def test_status_is_a_subresource_and_the_spec_cannot_be_written_through_it(kind: ObjectKindCase) -> None:
    await kind.create({}, status={"observedGeneration": 7})
    assert (await kind.patch({"status": {"observedGeneration": 7}}))["status"] == {"observedGeneration": -1}
    changed = await kind.patch({"spec": {"login": True}, "status": {"driftCount": 1}}, subresource="/status")
    assert changed["spec"] == _DEFAULTS
    assert changed["status"] == {"observedGeneration": -1, "driftCount": 1}


async def test_kubectl_get_pgr_prints_columns_from_the_status(
    api_server: ApiServer, kind: ObjectKindCase, namespace: str
) -> None:
    await kind.create({"name": "in_pg"})
    assert (await _printed(api_server, namespace))[0][:5] == ["app", "", "default", "", ""]
    ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": ""}
    status = {
        "conditions": [{**ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "role": {"name": "in_pg", "oid": 16412},
        "driftCount": 4,
    }
    await kind.patch({"status": status}, subresource="/status")
    assert (await _printed(api_server, namespace))[0][:6] == ["app", "in_pg", "default", "True", "Reconciled", 4]


async def test_the_short_name_is_pgr(api_server: ApiServer) -> None:
    discovered = await api_server.request("GET", "/apis/pgrole.dev/v1alpha1")
    [resource] = [one for one in discovered["resources"] if one["name"] == "pgroles"]
    assert resource["shortNames"] == ["pgr"]
    assert resource["namespaced"]


async def _printed(server: ApiServer, namespace: str) -> list[list[Any]]:
    """Returns the cells of each line, as kubectl asks the API server for them."""
    headers = {
        "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
        "Authorization": f"Bearer {server.token}",
    }
    url = f"{server.url}/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"
    trust = ssl.create_default_context(cafile=str(server.ca))
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, force_close=True)) as session,
        session.get(url, headers=headers) as response,
    ):
        table = await response.json()
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns == ["Name", "Role", "Server", "Ready", "Reason", "Drifts", "Age"]
    return [[cell if cell is not None else "" for cell in row["cells"]] for row in table["rows"]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"memberOf": [{"role": ""}]}, "at least 1"),
        ({"memberOf": [{"role": "ü" * 32}]}, "63 bytes"),
        ({"memberOf": [{"role": "a\0b"}]}, "NUL"),
        ({"memberOf": [{"role": "a"}, {"role": "a", "admin": True}]}, "Duplicate value"),
        ({"parameters": {"work mem": "1MB"}}, "parameters: a name must begin with a letter"),
        ({"parameters": {"x" * 64: "1MB"}}, "parameters: a name must begin with a letter"),
        ({"parameters": {"work_mem": "a\0b"}}, "NUL"),
        ({"parameters": {"DateStyle": "ISO", "datestyle": "German"}}, "parameter names are case-insensitive"),
        (
            {"databaseParameters": [{"database": "a", "parameters": {"a.x": "1", "a.X": "1"}}]},
            "parameter names are case-insensitive",
        ),
        ({"databaseParameters": [{"database": "a", "parameters": {}}] * 2}, "Duplicate value"),
        ({"databaseParameters": [{"database": "ü" * 32, "parameters": {}}]}, "63 bytes"),
        ({"databaseParameters": [{"database": "a\0", "parameters": {}}]}, "must not contain NUL"),
        ({"parameters": {"work_mem": "x" * 1025}}, "may not be more than 1024|Too long"),
        (
            {"databaseParameters": [{"database": "a", "parameters": {"1x": "1"}}]},
            "parameters: a name must begin with a letter",
        ),
        ({"drift": {"ignore": ["name"]}}, "Unsupported value"),
        ({"drift": {"ignore": ["login", "login"]}}, "Duplicate value"),
    ],
)
async def test_invalid_lists_and_settings_are_rejected(kind: ObjectKindCase, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalApiError, match=words):
        await kind.create(spec)


def parse(spec: dict[str, Any]) -> Manifests:
    """As `plan -f` reads the same object from a file."""
    body = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": {"name": "app"}, "spec": spec}
    return parse_manifests([("app.json", json.dumps(body))], "shop")


@pytest.mark.parametrize(
    "spec",
    [
        {"login": None, "memberOf": None, "drift": None, "comment": None, "parameters": None},
        {"serverRef": {"name": None}, "drift": {"policy": None, "ignore": None}},
        {"memberOf": [{"role": "a", "admin": None}], "parameters": {"work_mem": None, "app.a": "1"}},
        {"password": {"generate": None, "disabled": None, "secretRef": {"name": "a", "key": None}}},
        {"connectionSecret": {"name": "a", "template": None}},
        {"connectionSecret": {"name": "a", "template": {"metadata": None, "data": {"A": None}}}},
        {"connectionSecret": {"name": "a", "template": {"metadata": {"labels": {"a": None}}}}},
        {"privileges": [{"database": "a", "schemas": None, "objects": None}]},
        {"connectionLimit": 20.0},
    ],
)
async def test_plan_reads_nulls_and_numbers_as_the_api_server_does(kind: ObjectKindCase, spec: dict[str, Any]) -> None:
    created = await kind.create(spec)
    manifests = parse(spec)
    assert manifests.wrong == ()
    assert manifests.roles[0].pgrole.spec == read_pgrole(created).spec


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"memberOf": [None]}, "spec.memberOf.0: must be an object"),
        ({"memberOf": [{"role": None}]}, "spec.memberOf.0.role: Field required"),
        ({"databaseParameters": [{"database": "a", "parameters": None}]}, "parameters: Field required"),
        ({"connectionLimit": "20"}, "spec.connectionLimit: must be a valid integer"),
        ({"connectionLimit": True}, "spec.connectionLimit: must be a valid integer"),
        ({"connectionLimit": 20.5}, "spec.connectionLimit: must be a valid integer"),
        (
            {"password": {"generate": {"length": "32"}}, "connectionSecret": {"name": "a"}},
            "spec.password.generate.length: must be a valid integer",
        ),
        ({"password": {"disabled": 1}}, "spec.password.disabled: must be true"),
        ({"validUntil": 1_700_000_000}, "spec.validUntil must be an RFC 3339 date-time"),
    ],
)
async def test_plan_refuses_nulls_and_numbers_that_the_api_server_refuses(
    kind: ObjectKindCase, spec: dict[str, Any], told: str
) -> None:
    await kind.refusal(spec)
    (wrong,) = parse(spec).wrong
    assert told in wrong.error.message


def test_a_null_does_not_hide_a_misspelled_field() -> None:
    (wrong,) = parse({"lgoin": None, "memberOf": [{"role": "a", "amdin": None}]}).wrong
    assert "no such field: spec.lgoin, spec.memberOf[0].amdin" in wrong.error.message


@pytest.mark.parametrize("field", ["labels", "annotations"])
async def test_keys_of_labels_and_annotations_are_not_longer_than_a_secret_may_have(
    kind: ObjectKindCase, field: str
) -> None:
    def spec_with(*keys: str) -> dict[str, Any]:
        template = {"metadata": {field: dict.fromkeys(keys, "x")}}
        return {"connectionSecret": {"name": "a", "template": template}}

    longest = "d" * 253 + "/" + "n" * 63
    created = await kind.create(spec_with("a", longest))
    read_pgrole(created)
    told = f"spec.connectionSecret.template.metadata.{field}: a key has at most 317 characters"
    for key in (f"d{longest}", "n" * 10_000):
        assert told in await kind.refusal(spec_with("ok", key), "other"), key
        with pytest.raises(Invalid, match=f"^{told}"):
            read_pgrole(created | {"spec": spec_with("ok", key)})


async def test_lists_and_settings_are_admitted_with_their_defaults(kind: ObjectKindCase) -> None:
    created = await kind.create(
        {
            "memberOf": [{"role": 'odd "name"'}],
            "parameters": {"app.tenant_1": "it's", "DateStyle": "ISO"},
            "databaseParameters": [{"database": "orders", "parameters": {"work_mem": "64MB"}}],
            "drift": {"ignore": ["memberOf"]},
        }
    )
    assert created["spec"]["memberOf"] == [{"role": 'odd "name"', "admin": False, "inherit": True, "set": True}]
    assert created["spec"]["drift"] == {"policy": "Correct", "ignore": ["memberOf"]}
