"""postgres/privileges/ddl_events: which commands cause which reads."""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.postgres.privileges import ddl_events
from pgrole_controller.postgres.privileges.ddl_events import (
    CUT,
    EVERYTHING,
    CommittedCommand,
    PrivilegeRead,
    Scope,
    choose,
    read_names,
)
from pgrole_controller.postgres.rows import Unreadable

TABLE = ObjectId("pg_class", 20000)


def command(tag: str, said: str = "", target: ObjectId | None = None, siblings: int = 1, xid: int = 7) -> PrivilegeRead:
    return choose([CommittedCommand(xid, tag, object=target, said=said, siblings=siblings)])


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("GRANT SELECT ON app.Orders TO bob", {"select", "on", "app", "orders", "to", "bob"}),
        ('revoke all on "Odd ""name""" from x', {"all", "on", 'Odd "name"', "from", "x"}),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA app TO bob", None),
        ("GRANT EXECUTE ON ALL\n  ROUTINES IN SCHEMA app TO bob", None),
        ('GRANT SELECT ON U&"d\\0061t" TO bob', None),
        ("SELECT grant_it()", None),
        ('GRANT /*"*/ SELECT ON orders TO bob /*"*/', None),
        ('GRANT SELECT --"\n ON orders TO bob --"', None),
        ("GRANT SELECT ON Ärger TO bob", None),
        ('GRANT SELECT ON "caf\udce9" TO bob', None),
        ("GRANT SELECT ON " + ", ".join(f"t{number}" for number in range(200)) + " TO bob", None),
    ],
)
def test_names_are_read_from_a_statement_only_if_that_is_reliable(said: str, names: set[str] | None) -> None:
    assert read_names(said) == names


def test_a_grant_with_its_text_reads_the_named_objects() -> None:
    to_read = command("GRANT", "GRANT SELECT ON app.orders TO bob")
    assert to_read.scope is Scope.NAMED
    assert "orders" in to_read.names


def test_a_statement_shared_by_two_events_of_a_transaction_does_not_name_the_objects() -> None:
    event = CommittedCommand(7, "GRANT", said="GRANT SELECT ON app.orders TO bob", siblings=2)
    assert choose([event, event]).scope is Scope.RECENT
    assert choose([event, replace(event, xid=8)]).scope is Scope.NAMED
    assert choose([event, replace(event, said="GRANT SELECT ON app.items TO bob")]).scope is Scope.NAMED


@pytest.mark.parametrize(
    ("said", "columns"), [("GRANT SELECT (id) ON t TO bob", True), ("GRANT SELECT ON t TO bob", False)]
)
def test_only_a_statement_with_parentheses_reads_columns(said: str, columns: bool) -> None:
    assert command("GRANT", said).columns is columns


def test_a_grant_without_its_text_reads_rows_written_since_its_transaction() -> None:
    assert command("GRANT") == PrivilegeRead(Scope.RECENT, xid=7)


@pytest.mark.parametrize("tag", ["CREATE TABLE", "SELECT INTO", "ALTER TABLE", "CREATE FUNCTION"])
def test_a_created_or_altered_object_is_read_since_it_may_match_now(tag: str) -> None:
    to_read = command(tag, target=TABLE)
    assert to_read.scope is Scope.NAMED
    assert to_read.objects == {TABLE}


@pytest.mark.parametrize("tag", ["DROP OWNED", "CREATE SCHEMA", "ALTER SCHEMA", "CREATE EXTENSION"])
def test_far_reaching_commands_read_everything(tag: str) -> None:
    assert command(tag, target=TABLE).scope is Scope.FULL


@pytest.mark.parametrize(
    ("kind", "dropped"),
    [
        ("table", {"table"}),
        ("schema", {"schema"}),
        ("view column", {"column"}),
        ("type", {"type"}),
        ("index", set()),
        ("table constraint", set()),
        ("trigger", set()),
    ],
)
def test_a_dropped_object_is_not_read_and_a_kind_without_privileges_is_ignored(kind: str, dropped: set[str]) -> None:
    to_read = choose([CommittedCommand(7, "DROP", "ALTER TABLE", kind, TABLE)])
    assert (to_read.scope, set(to_read.dropped), to_read.is_needed) == (Scope.NOTHING, dropped, bool(dropped))
    assert set((to_read | PrivilegeRead(Scope.NAMED)).dropped) == dropped


@pytest.mark.parametrize("tag", ["DROP OWNED", "DROP EXTENSION"])
def test_statements_that_drop_and_do_more_read_everything(tag: str) -> None:
    assert choose([CommittedCommand(7, "DROP", tag, "table", TABLE)]).scope is Scope.FULL


def test_a_truncated_list_of_events_reads_everything() -> None:
    assert command("GRANT", "GRANT SELECT ON a TO b", siblings=CUT).scope is Scope.FULL


def test_default_privileges_are_read_only_after_alter_default_privileges() -> None:
    assert command("ALTER DEFAULT PRIVILEGES").defaults
    assert not command("GRANT").defaults


def test_combined_looks_read_all_their_names_and_objects_since_the_first_transaction() -> None:
    one, other = command("GRANT", "GRANT SELECT ON a TO b", xid=9), command("CREATE TABLE", target=TABLE, xid=8)
    both = one | other | PrivilegeRead()
    assert (both.scope, both.xid) == (Scope.NAMED, 8)
    assert "a" in both.names
    assert TABLE in both.objects
    assert (both | EVERYTHING).scope is Scope.FULL


@pytest.mark.parametrize("snapshot", ["", "x:8:", "-7:8:", f"{'9' * 5000}:8:"])
def test_an_invalid_snapshot_is_reported_as_unreadable(snapshot: str) -> None:
    assert ddl_events.oldest_running("7:9:8") == 7
    with pytest.raises(Unreadable):
        ddl_events.oldest_running(snapshot)
