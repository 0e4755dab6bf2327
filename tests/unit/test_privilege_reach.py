"""core/privileges/privilege_reach: which objects declarations may concern: at least all that one matches."""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
)
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.request import Key
from tests.cpu_time import within_a_callback

PEOPLE = ObjectPrivileges(ObjectKind.TABLE, "hr", ("people",), frozenset({"SELECT"}), ("id",))


def reach(declared: DatabasePrivileges | None, *former: DatabasePrivileges) -> PrivilegeReach:
    declarations = {} if declared is None else {declared.database: declared}
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 17000, declarations, {"orders": former} if former else {})
    return PrivilegeReach.of("orders", [grantee])


def test_access_touches_relations_or_routines_by_pattern() -> None:
    read = DatabasePrivileges("orders", schemas=(SchemaAccess("app*", frozenset({Access.READ})),))
    assert reach(read).touches("app_2", ObjectKind.TABLE)
    assert not reach(read).touches("app_2", ObjectKind.ROUTINE)
    assert not reach(read).touches("other", ObjectKind.TABLE)
    execute = DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.EXECUTE})),))
    assert reach(execute).touches("app", ObjectKind.ROUTINE)
    assert not reach(execute).touches("app", ObjectKind.TABLE)


def test_former_declarations_count_and_other_databases_do_not() -> None:
    read = DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.READ})),))
    assert reach(None, read).touches("app", ObjectKind.TABLE)
    elsewhere = DatabasePrivileges("other", schemas=read.schemas)
    assert not reach(elsewhere).touches("app", ObjectKind.TABLE)


def test_declared_columns_and_creators_are_in_reach() -> None:
    found = reach(DatabasePrivileges("orders", objects=(PEOPLE,), created_by=("maker",)))
    assert found.creators == {"maker"}
    people = DatabaseObject(ObjectId("pg_class", 1), ObjectKind.TABLE, "hr", "people", 10, "owner")
    assert found.has_columns(people)
    assert not found.has_columns(DatabaseObject(ObjectId("pg_class", 2), ObjectKind.TABLE, "hr", "pay", 10, "owner"))


def test_creation_in_schemas_is_in_reach_only_if_create_on_a_schema_is_declared() -> None:
    schema = ObjectPrivileges(ObjectKind.SCHEMA, "app*", (), frozenset({"USAGE", "CREATE"}))
    create = DatabasePrivileges("orders", objects=(schema,))
    assert reach(create).creates_in_schemas
    assert reach(None, create).creates_in_schemas
    use = DatabasePrivileges("orders", objects=(replace(schema, privileges=frozenset({"USAGE"})),))
    assert not reach(use).creates_in_schemas
    database = ObjectPrivileges(ObjectKind.DATABASE, "", (), frozenset({"CREATE"}))
    assert not reach(DatabasePrivileges("orders", objects=(database, PEOPLE))).creates_in_schemas


@pytest.mark.parametrize("schema", ["app", "a*"])
def test_tables_are_found_among_many_with_columns_without_delay(schema: str) -> None:
    """A complete read looks up every table, on the event loop."""
    columns = [replace(PEOPLE, schema=schema, names=(f"people_{number}",)) for number in range(10_000)]
    read = reach(DatabasePrivileges("orders", objects=tuple(columns)))
    table = DatabaseObject(ObjectId("pg_class", 1), ObjectKind.TABLE, "app", "people", 10, "owner")
    objects = [replace(table, name=f"people_{number}") for number in (*range(9700, 10_000), -1)]
    with within_a_callback():
        assert [read.has_columns(one) for one in objects] == [True] * 300 + [False]
