"""commands/export_objects, export_policy, export_yaml: roles as objects, objects as YAML that cannot be misread."""

import time
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.api.pgrole import IgnoredField
from pgrole_controller.api.reading import read_pgrole
from pgrole_controller.api.validation import is_object_name
from pgrole_controller.commands.export_objects import (
    ExportedObject,
    add_privileges,
    make_object,
    name_objects,
    sort_groups_first,
)
from pgrole_controller.commands.export_policy import find_refusal, find_reset
from pgrole_controller.commands.export_yaml import to_yaml
from pgrole_controller.core.desired import desired_role_of, privileges_of
from pgrole_controller.core.diff import diff, field_names
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.folding.privilege_folding import FoldedDatabase
from pgrole_controller.core.parameters import ALL, UNREADABLE
from pgrole_controller.core.policy import Policy, Reached, References
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, SchemaAccess
from pgrole_controller.core.role import BEFORE_ALL_TIME, UNSEEN, Membership, ObservedRole, Role

NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=15)


def make(role: Role, *folded: FoldedDatabase) -> ExportedObject:
    return add_privileges(make_object(ObservedRole(20000, replace(role, password=UNSEEN)), "role-x"), folded)


def test_only_fields_that_differ_from_the_defaults_are_written() -> None:
    made = make(Role("role-x"))
    assert made.document == {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {"name": "role-x"},
        "spec": {"adopt": True},
    }
    assert made.notes == ()


def test_every_field_is_written_that_differs_from_its_default() -> None:
    flags: dict[str, Any] = {one.name: not one.default for one in fields(Role) if isinstance(one.default, bool)}
    groups, parameters = (Membership("g"),), (("work_mem", "1MB"),)
    rest = Role(
        "role-x", False, connection_limit=3, valid_until=0, comment="c", member_of=groups, parameters=parameters
    )
    made = make(replace(rest, database_parameters=(("d", parameters),), **flags))
    assert made.document["spec"].keys() == {*get_args(IgnoredField), "adopt"} - {"password", "privileges"}


def test_namespace_and_server_are_set() -> None:
    made = make_object(ObservedRole(20000, Role("x")), "x", namespace="shop", server="main")
    assert made.document["metadata"] == {"name": "x", "namespace": "shop"}
    assert made.document["spec"]["serverRef"] == {"name": "main"}


@pytest.mark.parametrize(
    ("role", "field"),
    [
        (Role("x", comment="long" * 300), "comment"),
        (Role("x", comment="\0"), "comment"),
        (Role("x", comment="\udcff"), "comment"),
        (Role("x", valid_until=BEFORE_ALL_TIME), "validUntil"),
        (Role("x", member_of=(Membership("\udcff"),)), "memberOf"),
        (Role("x", member_of=tuple(Membership(f"g{one:03}") for one in range(100))), "memberOf"),
        (Role("x", parameters=tuple((f"a.p{one:03}", "1") for one in range(65))), "parameters"),
        (
            Role("x", database_parameters=tuple((f"d{one:03}", (("work_mem", "1MB"),)) for one in range(33))),
            "databaseParameters",
        ),
        (Role("x", parameters=((ALL, UNREADABLE),)), "parameters"),
        (Role("x", parameters=(("search_path", UNREADABLE),)), "parameters"),
        (Role("x", database_parameters=(("db", (("work_mem", "1" * 2000),)),)), "databaseParameters"),
    ],
)
def test_a_field_whose_value_cannot_be_declared_is_ignored_with_a_note(role: Role, field: str) -> None:
    made = make(role)
    assert made.document["spec"]["drift"] == {"ignore": [field]}
    assert made.notes == (f"{field} cannot be declared exactly, and is left as it is (drift.ignore)",)


@pytest.mark.parametrize("scoped", [False, True])
def test_a_parameter_of_superusers_is_noted_that_the_controller_resets_though_it_is_ignored(scoped: bool) -> None:
    held = (*((f"a.p{one:03}", "1") for one in range(64)), ("log_statement", "all"), ("work_mem", "1" * 2000))
    role = Role("x", database_parameters=(("db", held),)) if scoped else Role("x", parameters=held)
    references = References(contexts={"log_statement": "superuser", "work_mem": "user"})
    found, document = ObservedRole(20000, role), make(role).document
    assert find_refusal(found, document, Policy(), references) == ""
    assert find_reset(found, document, Policy(), references).startswith("log_statement: for superusers")
    listing = Policy(parameters=frozenset({"log_statement"}))
    assert find_reset(found, document, listing, references) == ""
    assert find_reset(found, make(Role("x")).document, Policy(), references) == ""


def test_a_name_that_cannot_be_declared_is_refused() -> None:
    with pytest.raises(Refused, match=r"spec\.name"):
        make(Role("public"))


def test_databases_beyond_the_limit_of_an_object_are_left_out_with_a_note() -> None:
    folded = [
        FoldedDatabase(DatabasePrivileges(f"db{one:02}", schemas=(SchemaAccess("app", frozenset({Access.READ})),)))
        for one in range(17)
    ]
    made = make(Role("x"), *folded)
    assert len(privileges_of(read_pgrole(made.document)) or ()) == 16
    assert made.notes == ("database db16: left out: an object declares at most 16 databases and 2000 names",)


def test_privileges_and_their_notes_come_before_what_is_ignored() -> None:
    bare = make_object(ObservedRole(20000, Role("role-x", comment="long" * 300, password=UNSEEN)), "role-x")
    folded = [
        FoldedDatabase(DatabasePrivileges(f"db{one:02}", schemas=(SchemaAccess("app", frozenset({Access.READ})),)))
        for one in range(17)
    ]
    made = add_privileges(bare, folded)
    assert [*made.document["spec"]] == ["privileges", "drift", "adopt"]
    left_out = "database db16: left out: an object declares at most 16 databases and 2000 names"
    assert made.notes == (left_out, *bare.notes)
    assert [*bare.document["spec"]] == ["drift", "adopt"]
    assert add_privileges(bare, ()) == bare


def test_list_parameters_are_quoted_only_where_necessary() -> None:
    made = make(Role("x", parameters=(("search_path", '"$user", "app", "Odd name"'),)))
    assert made.document["spec"]["parameters"] == {"search_path": '"$user", app, "Odd name"'}


roles = st.builds(
    Role,
    name=NAMES.map(lambda name: f"r{name}"),
    login=st.booleans(),
    inherit=st.booleans(),
    connection_limit=st.integers(-1, 5),
    valid_until=st.none() | st.integers(-(2**63), 2**62),
    comment=st.none() | NAMES,
    member_of=st.lists(NAMES, unique=True, max_size=3).map(lambda names: tuple(Membership(n) for n in sorted(names))),
    parameters=st.dictionaries(st.sampled_from(["work_mem", "search_path", "a.b"]), NAMES).map(
        lambda held: tuple(sorted(held.items()))
    ),
)


@given(roles)
def test_the_yaml_of_any_role_declares_that_role(role: Role) -> None:
    made = make(role)
    document = yaml.safe_load(to_yaml(made.document, ["\x1b[31m", "two\nlines", *made.notes]))
    assert document == made.document
    ignored = set(document["spec"].get("drift", {}).get("ignore", ()))
    assert set(field_names(diff(desired_role_of(read_pgrole(document)), role))) <= ignored


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "on", "null", "~", "1e3", "0o14", "0x1f", "1_000", "12:30:00", ".inf", "2030-01-01", "- a", "a: b"],
)
def test_text_that_yaml_would_read_as_something_else_is_quoted(text: str) -> None:
    assert to_yaml({"name": text}) == f'name: "{text}"\n'


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202egnp", "\u2028", "\x85", "é\u200b"])
def test_text_cannot_control_a_terminal(text: str) -> None:
    written = to_yaml({"name": text}, [text])
    assert all(sign.isprintable() or sign == "\n" for sign in written)
    assert yaml.safe_load(written) == {"name": text}


def test_a_long_comment_is_written_at_once() -> None:
    for text in ("The account of the orders application, which team billing owns", f"{'k' * 63}!"):
        began = time.process_time()
        assert to_yaml({"comment": text}) == f'comment: "{text}"\n'
        assert time.process_time() - began < 1


def test_readable_names_stay_readable() -> None:
    assert to_yaml({"name": "Müller"}) == 'name: "Müller"\n'


def test_object_names_are_the_role_names_where_possible() -> None:
    names = name_objects(["orders_app", "readers", "Readers", "a.b", "---", "public", "x" * 60])
    assert names["orders_app"] == "orders-app"
    assert names["readers"] == "readers"
    assert names["Readers"].startswith("readers-")
    assert names["a.b"] == "a.b"
    assert names["---"] == "role"
    assert names["public"] == "public"


@given(st.lists(NAMES | st.sampled_from(["a_b", "a-b", "A b", "a-b-", "role", "_"]), unique=True))
def test_every_role_gets_a_valid_and_unique_object_name(role_names: list[str]) -> None:
    names = name_objects(role_names)
    assert set(names) == set(role_names)
    assert len(set(names.values())) == len(names)
    assert all(is_object_name(name) for name in names.values())


def test_no_role_can_be_named_so_that_another_one_has_the_same_object_name() -> None:
    names = {"a b": "a-b", "a_b": "a-b"}
    for taken in name_objects(names).values():
        for rival in (taken, taken.replace("-", "_")):
            made = name_objects([*names, rival])
            assert made[rival] == taken
            assert len(set(made.values())) == 3


def test_groups_come_before_their_members() -> None:
    members = {"a": ("c",), "b": ("a", "c"), "c": ("d", "elsewhere"), "d": ()}
    objects = [ExportedObject(name, {}, (), groups) for name, groups in members.items()]
    assert [one.role_name for one in sort_groups_first(objects)] == ["d", "c", "a", "b"]


def test_a_role_that_reaches_a_superuser_is_reported_as_not_adoptable() -> None:
    role = Role("role-x", member_of=(Membership("root"),))
    found = ObservedRole(20000, role, reaches=("root",))
    references = References(groups={"root": ("root",)}, reached={"root": (Reached("root", ("superuser",)),)})
    refusal = find_refusal(found, make(role).document, Policy(), references)
    assert refusal.startswith("adoption is denied")
    named = Policy(adopt=True, member_of=("*", "root"))
    assert find_refusal(found, make(role).document, named, references) == ""
