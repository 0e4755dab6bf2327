"""spec.privileges in a real API server: it admits what the models accept, and rejects the rest with the same
messages.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from pgrole_controller.api.pgrole import PgRole
from pgrole_controller.local.apiserver import ApiServer, LocalApiError

_ORDERS = {
    "database": "orders",
    "onDatabase": ["CONNECT", "TEMPORARY"],
    "schemas": [
        {"name": "app", "access": ["Read"]},
        {"name": "report_*", "access": ["Read", "Write", "Execute"], "except": ["salaries", "tmp_*"]},
    ],
    "objects": [
        {"kind": "Table", "schema": "app", "names": ["orders", "order_*"], "privileges": ["INSERT", "MAINTAIN"]},
        {"kind": "Table", "schema": "hr", "names": ["people"], "columns": ["id", "é"], "privileges": ["SELECT"]},
        {"kind": "Sequence", "schema": "app", "names": ["*"], "privileges": ["USAGE", "SELECT", "UPDATE"]},
        {"kind": "Routine", "schema": "app", "names": ["close(" + "x" * 249 + ")"], "privileges": ["EXECUTE"]},
    ],
    "createdBy": ["shop_orders_owner"],
    "unmanaged": ["scratch_*"],
}


class PrivilegesReader:
    """Creates PgRoles with these privileges in a dry run: admitted and defaulted, but not stored."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"

    async def create(self, privileges: list[dict[str, Any]] | None) -> dict[str, Any]:
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        return await self._server.request("POST", self._path, body(privileges), query=query)

    async def refusal(self, *privileges: dict[str, Any]) -> str:
        with pytest.raises(LocalApiError) as caught:
            await self.create([*privileges])
        assert caught.value.status == 422
        return str(caught.value)


@pytest.fixture
def reader(api_server: ApiServer, namespace: str) -> PrivilegesReader:
    return PrivilegesReader(api_server, namespace)


def body(privileges: list[dict[str, Any]] | None) -> dict[str, Any]:
    spec = {} if privileges is None else {"privileges": privileges}
    return {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": {"name": "reader"}, "spec": spec}


def table(**more: Any) -> dict[str, Any]:
    item = {"kind": "Table", "schema": "app", "names": ["orders"], "privileges": ["SELECT"], **more}
    return {"database": "orders", "objects": [item]}


async def test_a_full_declaration_is_admitted_unchanged(reader: PrivilegesReader) -> None:
    made = await reader.create([_ORDERS])
    assert made["spec"]["privileges"] == [_ORDERS]
    assert PgRole.model_validate(made).spec == PgRole.model_validate(body([_ORDERS])).spec


async def test_absent_and_empty_privileges_are_not_defaulted(reader: PrivilegesReader) -> None:
    assert "privileges" not in (await reader.create(None))["spec"]
    assert (await reader.create([]))["spec"]["privileges"] == []
    assert (await reader.create([{"database": "*"}]))["spec"]["privileges"] == [{"database": "*"}]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (table(kind="Sequence", privileges=["SELECT", "INSERT"]), "Sequence has USAGE, SELECT and UPDATE, Routine has"),
        (table(kind="Routine"), "Routine has EXECUTE; all other kinds have SELECT, INSERT"),
        (table(privileges=["USAGE"]), "all other kinds have SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES"),
        (table(kind="View", privileges=["EXECUTE"]), "all other kinds have SELECT, INSERT"),
        (
            table(columns=["id"], privileges=["SELECT", "DELETE"]),
            "columns requires kind Table, and only SELECT, INSERT",
        ),
        (table(columns=["id"], kind="View"), "columns requires kind Table, and only SELECT, INSERT"),
        (table(columns=["id"], names=["order_*"]), "with columns, neither names nor columns can contain * or ?"),
        (table(columns=["id"], names=["order?"]), "with columns, neither names nor columns can contain * or ?"),
        (table(columns=["i*"]), "with columns, neither names nor columns can contain * or ?"),
        (table(columns=["i?"]), "with columns, neither names nor columns can contain * or ?"),
        (table(names=["é" * 32]), "names: a name must have 1 to 63 bytes (UTF-8), or, of kind Routine with argument"),
        (table(names=["x" * 64]), "names: a name must have 1 to 63 bytes (UTF-8), or, of kind Routine with argument"),
        (
            table(kind="Routine", names=["é" * 129], privileges=["EXECUTE"]),
            "names: a name must have 1 to 63 bytes (UTF-8), or, of kind Routine with argument types, 256",
        ),
        (table(names=["a\0"]), "spec.privileges: a name must not contain NUL (U+0000): remove it"),
        (table(schema="é" * 32), "spec.privileges: a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": "é" * 32}, "spec.privileges: a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": "a", "createdBy": ["a\0"]}, "spec.privileges: a name must not contain NUL (U+0000): remove it"),
        ({"database": "a", "unmanaged": ["é" * 32]}, "spec.privileges: a name must have 1 to 63 bytes (UTF-8)"),
        (
            {"database": "a", "schemas": [{"name": "b", "access": ["Read"], "except": ["é" * 32]}]},
            "spec.privileges: a name must have 1 to 63 bytes (UTF-8), like every name",
        ),
    ],
)
async def test_cel_rules_and_model_reject_with_the_same_message(
    reader: PrivilegesReader, wrong: dict[str, Any], says: str
) -> None:
    assert says in await reader.refusal(wrong)
    with pytest.raises(ValidationError) as caught:
        PgRole.model_validate(body([wrong]))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (table(privileges=["ALL"]), 'privileges[0]: Unsupported value: "ALL"'),
        (table(privileges=[]), "should have at least 1 items"),
        (table(names=[]), "should have at least 1 items"),
        (table(columns=[]), "should have at least 1 items"),
        (table(kind="Type"), 'kind: Unsupported value: "Type"'),
        (table(names=["t"] * 129), "Too many: 129: must have at most 128 items"),
        ({"schemas": []}, "spec.privileges[0].database: Required value"),
        ({"database": ""}, "should be at least 1 chars long"),
        ({"database": "x" * 64}, "may not be more than 63 bytes"),
        ({"database": "a", "onDatabase": ["TEMP"]}, 'onDatabase[0]: Unsupported value: "TEMP"'),
        ({"database": "a", "schemas": [{"name": "b", "access": []}]}, "should have at least 1 items"),
        ({"database": "a", "schemas": [{"name": "b"}]}, "access: Required value"),
        ({"database": "a", "schemas": [{"name": "b", "access": ["Read"]}] * 2}, "Duplicate value"),
    ],
)
async def test_schema_and_model_reject_the_same_values(
    reader: PrivilegesReader, wrong: dict[str, Any], says: str
) -> None:
    assert says in await reader.refusal(wrong)
    with pytest.raises(ValidationError):
        PgRole.model_validate(body([wrong]))


async def test_a_repeated_name_is_rejected(reader: PrivilegesReader) -> None:
    """A program may repeat a name, since the declaration is a set."""
    assert "Duplicate value" in await reader.refusal(table(names=["a", "a"]))


async def test_a_repeated_database_and_more_than_16_databases_are_rejected(reader: PrivilegesReader) -> None:
    assert "Duplicate value" in await reader.refusal({"database": "a"}, {"database": "a"})
    assert "must have at most 16 items" in await reader.refusal(*({"database": f"d{one}"} for one in range(17)))


async def test_1900_names_are_admitted_within_the_cost_budget_of_the_rules(reader: PrivilegesReader) -> None:
    """The model enforces the maximum, which is reported on the object."""
    names = [f"{'é' * 28}{number:04}" for number in range(1900)]
    items = [
        {"kind": "Table", "schema": "app", "names": names[first : first + 100], "privileges": ["SELECT", "INSERT"]}
        for first in range(0, 1900, 100)
    ]
    made = await reader.create([{"database": "orders", "objects": items}])
    assert PgRole.model_validate(made).spec.privileges


async def test_fields_planned_for_later_are_unknown(reader: PrivilegesReader) -> None:
    for later in (table(grantable=True), {"database": "a", "expiresAt": "2026-12-01T00:00:00Z"}):
        with pytest.raises(LocalApiError, match="unknown field"):
            await reader.create([later])


async def test_a_status_written_by_the_controller_is_stored_unchanged(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"
    await api_server.request("POST", path, body(None))
    name, moment = "é" * 31 + "x", "2026-01-01T00:00:00Z"
    short = {
        "time": moment,
        "fields": ["privileges"],
        "database": name,
        "details": ["DELETE on table app.orders was granted"],
        "count": 3,
        "corrected": True,
        "by": {"login": name, "proof": "Transaction"},
    }
    status = {
        "observedGeneration": 1,
        "lastDrift": {
            "time": moment,
            "fields": ["privileges"],
            "corrected": True,
            "database": name,
            "details": ["x" * 512] * 11,
            "by": {
                "login": name,
                "role": name,
                "application": "psql",
                "address": "2001:db8::1",
                "time": moment,
                "statement": "x" * 120,
                "proof": "Transaction",
            },
        },
        "driftHistory": [short] * 9 + [{"time": moment, "corrected": False}],
        "privileges": [
            {"database": f"d{one}", "ready": False, "reason": "PrivilegePending", "message": "x" * 1024}
            for one in range(32)
        ],
    }
    answer = await api_server.request(
        "PATCH", f"{path}/reader/status", {"status": status}, content_type="application/merge-patch+json"
    )
    assert answer["status"] == status
    read = PgRole.model_validate(answer).status
    assert read is not None
    assert read.drift_history is not None
    assert read.drift_history[0].by is not None
    dumped = read.model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert dumped == status
