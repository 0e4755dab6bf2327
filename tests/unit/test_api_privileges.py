"""spec.privileges: what the model accepts, what it rejects with which message, and the declaration it becomes."""

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pgrole_controller.api.meta import ObjectMeta
from pgrole_controller.api.pgrole import PgRole, PgRoleSpec
from pgrole_controller.api.privileges import (
    MOST_NAMES,
    DatabasePrivilegesSpec,
    ObjectPrivilegesSpec,
    SchemaPrivilegesSpec,
)
from pgrole_controller.api.server_databases import ObjectKindName, PrivilegeName
from pgrole_controller.core.claim import Owner
from pgrole_controller.core.desired import desired_of, privileges_of
from pgrole_controller.core.privileges.acl import COLUMN_PRIVILEGES, DECLARABLE, TABLE_KINDS, ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    ObjectPrivileges,
    SchemaAccess,
    from_json,
    to_json,
)
from tests.roles import texts

ORDERS = {
    "database": "orders",
    "onDatabase": ["CONNECT"],
    "schemas": [
        {"name": "report_*", "access": ["Read"], "except": ["salaries", "tmp_*"]},
        {"name": "app", "access": ["Write", "Execute"]},
    ],
    "objects": [
        {"kind": "Table", "schema": "hr", "names": ["people"], "columns": ["name", "id"], "privileges": ["SELECT"]},
        {"kind": "Routine", "schema": "app", "names": ["close_order(bigint)"], "privileges": ["EXECUTE"]},
    ],
    "createdBy": ["shop_owner"],
    "unmanaged": ["scratch_*"],
}


def build(*privileges: dict[str, Any], **more: Any) -> PgRole:
    return PgRole.model_validate(
        {"metadata": {"name": "reader", "namespace": "shop"}, "spec": {"privileges": [*privileges], **more}}
    )


def table(**more: Any) -> dict[str, Any]:
    return {"kind": "Table", "schema": "app", "names": ["orders"], "privileges": ["SELECT"], **more}


def on(*objects: dict[str, Any]) -> dict[str, Any]:
    return {"database": "orders", "objects": [*objects]}


def message_of(*privileges: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        build(*privileges)
    [error] = caught.value.errors()
    return str(error["msg"])


def test_python_uses_snake_case_and_yaml_camel_case() -> None:
    spec = PgRoleSpec(
        privileges=[
            DatabasePrivilegesSpec(
                database="orders",
                schemas=[SchemaPrivilegesSpec(name="app", access=["Read"], except_=["salaries"])],
                objects=[ObjectPrivilegesSpec(kind="Table", schema_="hr", names=["people"], privileges=["SELECT"])],
                created_by=["owner"],
            )
        ]
    )
    pgrole = PgRole(metadata=ObjectMeta(name="reader"), spec=spec)
    dumped = pgrole.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert dumped["spec"]["privileges"] == [
        {
            "database": "orders",
            "onDatabase": [],
            "schemas": [{"name": "app", "access": ["Read"], "except": ["salaries"]}],
            "objects": [{"kind": "Table", "schema": "hr", "names": ["people"], "privileges": ["SELECT"]}],
            "createdBy": ["owner"],
            "unmanaged": [],
        }
    ]
    assert PgRole.model_validate(dumped) == pgrole


def test_absent_means_unmanaged_and_an_empty_list_means_no_database() -> None:
    absent = PgRole.model_validate({"metadata": {"name": "reader"}, "spec": {}})
    assert privileges_of(absent) is None
    assert privileges_of(build()) == {}
    assert privileges_of(build({"database": "orders"})) == {"orders": DatabasePrivileges("orders")}


def test_the_declaration_is_the_spec_in_canonical_order() -> None:
    declared = privileges_of(build(ORDERS))
    assert declared == {
        "orders": DatabasePrivileges(
            "orders",
            frozenset({"CONNECT"}),
            (
                SchemaAccess("app", frozenset({Access.WRITE, Access.EXECUTE})),
                SchemaAccess("report_*", frozenset({Access.READ}), ("salaries", "tmp_*")),
            ),
            (
                ObjectPrivileges(ObjectKind.ROUTINE, "app", ("close_order(bigint)",), frozenset({"EXECUTE"})),
                ObjectPrivileges(ObjectKind.TABLE, "hr", ("people",), frozenset({"SELECT"}), ("id", "name")),
            ),
            ("shop_owner",),
            ("scratch_*",),
        )
    }


def test_the_order_of_entries_does_not_matter() -> None:
    turned = {
        **ORDERS,
        "schemas": [
            {"name": "app", "access": ["Execute", "Write"]},
            {"name": "report_*", "access": ["Read"], "except": ["tmp_*", "salaries"]},
        ],
        "objects": [
            {"kind": "Routine", "schema": "app", "names": ["close_order(bigint)"], "privileges": ["EXECUTE"]},
            table(schema="hr", names=["people"], columns=["id", "name"]),
        ],
    }
    assert privileges_of(build(turned)) == privileges_of(build(ORDERS))


def test_the_desired_state_includes_privileges_and_whether_their_drift_is_ignored() -> None:
    owner = Owner("cluster", "shop", "n", "reader", "uid")
    desired = desired_of(build(ORDERS, drift={"ignore": ["privileges", "login"]}), owner, (), None)
    assert desired.privileges == privileges_of(build(ORDERS))
    assert desired.privileges_ignored
    assert desired.ignore == {"login"}
    assert not desired_of(build(ORDERS), owner, (), None).privileges_ignored


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (on(table(kind="Sequence", privileges=["INSERT"])), "Sequence has USAGE, SELECT and UPDATE"),
        (on(table(kind="Routine")), "Routine has EXECUTE"),
        (on(table(privileges=["USAGE"])), "all other kinds have SELECT, INSERT"),
        (on(table(kind="View", privileges=["SELECT", "EXECUTE"])), "all other kinds have SELECT, INSERT"),
        (on(table(columns=["id"], privileges=["DELETE"])), "columns requires kind Table, and only SELECT"),
        (on(table(columns=["id"], kind="View")), "columns requires kind Table, and only SELECT"),
        (on(table(columns=["id"], names=["order_*"])), "neither names nor columns can contain * or ?"),
        (on(table(columns=["i?"])), "neither names nor columns can contain * or ?"),
        (on(table(names=["é" * 32])), "a name must have 1 to 63 bytes (UTF-8), or, of kind Routine"),
        (on(table(kind="Routine", names=["é" * 129], privileges=["EXECUTE"])), "a name must have 1 to 63 bytes"),
        (on(table(names=["a\0"])), "a name must not contain NUL"),
        (on(table(schema="é" * 32)), "a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": ""}, "a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": "x" * 64}, "a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": "a", "createdBy": ["a\0"]}, "a name must not contain NUL"),
        ({"database": "a", "unmanaged": ["é" * 32]}, "a name must have 1 to 63 bytes (UTF-8), like every name"),
        ({"database": "a", "schemas": [{"name": "b", "access": ["Read"]}] * 2}, 'schemas names "b" twice'),
    ],
)
def test_impossible_declarations_are_rejected_with_a_message(wrong: dict[str, Any], says: str) -> None:
    message = message_of(wrong)
    assert message.startswith("spec.privileges")
    assert says in message


@pytest.mark.parametrize(
    "wrong",
    [
        on(table(privileges=["ALL"])),
        on(table(privileges=[])),
        on(table(names=[])),
        on(table(columns=[])),
        on(table(kind="Type")),
        {"database": "a", "onDatabase": ["TEMP"]},
        {"database": "a", "schemas": [{"name": "b", "access": []}]},
        {"database": "a", "schemas": [{"name": "b", "access": ["All"]}]},
        {"database": "a", "createdBy": ["r"] * 33},
    ],
)
def test_unknown_values_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build(wrong)


def test_each_database_may_be_named_once_and_at_most_16_may_be_listed() -> None:
    assert 'names database "a" twice: put its privileges into one item' in message_of(
        {"database": "a"}, {"database": "a"}
    )
    assert len(privileges_of(build(*({"database": f"d{number}"} for number in range(16)))) or ()) == 16
    assert "16" in message_of(*({"database": f"d{number}"} for number in range(17)))


def test_the_limit_on_names_and_patterns_counts_all_databases() -> None:
    def declare(names: int) -> list[dict[str, Any]]:
        """Returns an item with this many table names, in groups of 100 that each name their schema."""
        items = [table(names=[f"t{first + number}" for number in range(100)]) for first in range(0, names, 100)]
        return [{"database": "a", "objects": items}]

    assert privileges_of(build(*declare(1900)))
    message = message_of(*declare(2000))
    assert message.startswith(f"spec.privileges lists 2021 names and patterns, and at most {MOST_NAMES} are allowed")
    full = {
        "database": "a",
        "schemas": [
            {"name": f"s{one}", "access": ["Read"], "except": [f"e{two}" for two in range(64)]} for one in range(31)
        ],
    }
    assert "lists 2016 names" in message_of(full)
    assert ObjectPrivilegesSpec.model_validate(table(columns=["a", "b"])).columns == ["a", "b"]
    assert DatabasePrivilegesSpec.model_validate(ORDERS).count_names() == 1 + 2 + 2 + (1 + 1 + 2) + (1 + 1) + 1 + 1


def test_the_model_accepts_exactly_the_kinds_and_privileges_of_core() -> None:
    for kind, privileges in DECLARABLE.items():
        if kind in (ObjectKind.DATABASE, ObjectKind.SCHEMA):
            continue
        for privilege in sorted(
            {one for some in DECLARABLE.values() for one in some} - {"CREATE", "CONNECT", "TEMPORARY"}
        ):
            item = on(table(kind=kind.value, privileges=[privilege]))
            if privilege in privileges:
                assert privileges_of(build(item))
            else:
                assert "spec.privileges[].objects[].privileges" in message_of(item)
    kinds = set(get_args(ObjectPrivilegesSpec.model_fields["kind"].annotation))
    assert kinds == {kind.value for kind in DECLARABLE} - {"Database", "Schema"}
    for privilege in DECLARABLE[ObjectKind.TABLE]:
        item = on(table(columns=["id"], privileges=[privilege]))
        assert bool(privilege in COLUMN_PRIVILEGES) is _is_taken(item)
    assert {*get_args(ObjectKindName)} == {kind.value for kind in DECLARABLE}
    assert {*get_args(PrivilegeName)} == {one for some in DECLARABLE.values() for one in some}
    assert {kind.value for kind in TABLE_KINDS} < kinds
    [access] = get_args(SchemaPrivilegesSpec.model_fields["access"].annotation)
    assert set(get_args(access)) == {one.value for one in Access}


def _is_taken(item: dict[str, Any]) -> bool:
    try:
        build(item)
    except ValidationError:
        return False
    return True


def _names() -> st.SearchStrategy[str]:
    return texts().filter(lambda text: 1 <= len(text.encode()) <= 63)


def _several(most: int = 3, least: int = 0) -> st.SearchStrategy[list[str]]:
    return st.lists(_names(), max_size=most, min_size=least, unique=True)


def _some(*choices: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(choices), min_size=1, unique=True)


def _mapping(
    required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional or {})


def _named_by(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda one: str(one[name])


_OBJECTS = st.one_of(
    *(
        _mapping(
            {
                "kind": st.just(kind.value),
                "schema": _names(),
                "names": _several(least=1),
                "privileges": _some(*DECLARABLE[kind]),
            }
        )
        for kind in (*sorted(TABLE_KINDS), ObjectKind.SEQUENCE, ObjectKind.ROUTINE)
    ),
    _mapping(
        {
            "kind": st.just("Table"),
            "schema": _names(),
            "names": st.just(["people"]),
            "columns": st.just(["id", "name"]),
            "privileges": _some(*sorted(COLUMN_PRIVILEGES)),
        }
    ),
)
_DATABASES = _mapping(
    {"database": _names()},
    {
        "onDatabase": _some("CONNECT", "TEMPORARY", "CREATE"),
        "schemas": st.lists(
            _mapping({"name": _names(), "access": _some("Read", "Write", "Execute")}, {"except": _several()}),
            max_size=3,
            unique_by=_named_by("name"),
        ),
        "objects": st.lists(_OBJECTS, max_size=3),
        "createdBy": _several(),
        "unmanaged": _several(),
    },
)


@given(st.lists(_DATABASES, max_size=3, unique_by=_named_by("database")))
def test_every_declaration_survives_json_and_the_claim(privileges: list[dict[str, Any]]) -> None:
    pgrole = build(*privileges)
    dumped = json.loads(pgrole.model_dump_json(by_alias=True, exclude_none=True))
    again = PgRole.model_validate(dumped)
    assert again == pgrole
    declared = privileges_of(again)
    assert declared is not None
    assert set(declared) == {one["database"] for one in privileges}
    for one in declared.values():
        assert from_json(json.loads(json.dumps(to_json(one)))) == one
