"""commands/plan_output: output for names with any character."""

import io
import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from pgrole_controller.commands.output import render_document
from pgrole_controller.commands.plan_model import (
    NOT_COMPARED,
    SUSPENDED,
    PlannedAction,
    PlannedChange,
    PlannedObject,
    PlannedSql,
    PlanReport,
    Sign,
)
from pgrole_controller.commands.plan_output import print_plan, render_json, render_sql
from pgrole_controller.commands.plan_words import describe_changes
from pgrole_controller.core.diff import RevokeMembership, RevokeOption
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.request import Key

HOSTILE = "a\x1b[2J\nb\u202e\udc80"


def planned(text: str) -> PlannedObject:
    return PlannedObject(
        Key("shop", "app"),
        "roles.yaml:1",
        text,
        "default",
        PlannedAction.CHANGE,
        (PlannedChange(Sign.ADDED, "login", text, text),),
        (PlannedSql("", (f"-- {text}",)), PlannedSql(text, ("SELECT 1",))),
        refusals=(Refused(Reason.NOT_ALLOWED, text),),
        notes=(text,),
    )


def printed(report: PlanReport, *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, markup=False, highlight=False, force_terminal=terminal, no_color=False, width=120)
    print_plan(console, report)
    return stream.getvalue()


def test_control_characters_in_a_name_do_not_reach_the_terminal() -> None:
    said = printed(PlanReport((planned(HOSTILE),), (HOSTILE,)), terminal=False)
    assert not {"\x1b", "\u202e", "\udc80"} & set(said)
    assert "\\x1b[2J\\nb" in said


def test_additions_are_green_on_a_terminal_only() -> None:
    report = PlanReport((planned("plain"),))
    assert "\x1b[32m    + plain" in printed(report, terminal=True)
    assert "\x1b" not in printed(report, terminal=False)


def test_statements_that_need_roles_of_other_objects_are_marked() -> None:
    sql = (PlannedSql("", ("CREATE ROLE a",)), PlannedSql("", ("GRANT b TO a",), late=True))
    said = printed(PlanReport((PlannedObject(Key("shop", "a"), sql=sql, action=PlannedAction.CREATE),)), terminal=False)
    assert "    SQL:\n      CREATE ROLE a;\n" in said
    assert "    SQL, after the roles that other objects create:\n      GRANT b TO a;\n" in said


def test_a_script_names_servers_only_if_it_has_statements_for_several() -> None:
    """A document that cannot be read is on no server."""
    wrong = PlannedObject(None, "roles.yaml:9", action=PlannedAction.FAIL)
    assert "connect to it" not in render_sql(PlanReport((wrong, planned("app"))))
    script = render_sql(PlanReport((wrong, planned("app"), replace(planned("app"), server="other"))))
    assert [line.split(":")[0] for line in script.splitlines() if "connect to it" in line] == [
        "-- PgServer default",
        "-- PgServer other",
    ]


def test_json_is_valid_whatever_a_name_contains() -> None:
    found = json.loads(render_json(PlanReport((planned(HOSTILE),))))
    assert found["counts"] == {"change": 1}
    assert found["objects"][0]["refusals"][0]["reason"] == "NotAllowed"
    render_json(PlanReport((planned(HOSTILE),))).encode("utf-8")


@pytest.mark.parametrize(
    ("database", "line"),
    [
        ("orders", "\\connect -reuse-previous=on \"dbname='orders'\""),
        ("a'b\\c\"d", '\\connect -reuse-previous=on "dbname=\'a\\\'b\\\\c""d\'"'),
        ("postgresql://evil/x", "\\connect -reuse-previous=on \"dbname='postgresql://evil/x'\""),
    ],
)
def test_a_database_is_connected_to_by_its_name(database: str, line: str) -> None:
    one = PlannedObject(Key("shop", "app"), sql=(PlannedSql(database, ("SELECT 1",)),), action=PlannedAction.CHANGE)
    assert line in render_sql(PlanReport((one,))).splitlines()


def test_a_database_whose_name_has_a_line_break_is_left_out_of_the_script() -> None:
    one = PlannedObject(Key("shop", "app"), sql=(PlannedSql("a\nb", ("SELECT 1",)),), action=PlannedAction.CHANGE)
    script = render_sql(PlanReport((one,)))
    assert "SELECT 1" not in script
    assert "left out" in script
    assert all(line.startswith(("--", "\\", "SET ")) for line in script.splitlines() if line)


def test_remedies_name_the_program_that_the_user_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    error = Refused(Reason.NOT_ALLOWED, "run `pgrole-controller sql --database`")
    report = PlanReport((PlannedObject(Key("shop", "a"), action=PlannedAction.REFUSE, refusals=(error,)),))
    for said in (printed(report, terminal=False), render_json(report), render_sql(report)):
        assert "run `kubectl pgrole sql --database`" in said


def test_the_last_line_counts_objects_and_changes() -> None:
    assert printed(PlanReport(()), terminal=False).splitlines()[-1] == "nothing to do: no objects"
    assert printed(PlanReport((planned("x"),)), terminal=False).splitlines()[-1] == "1 object: 1 change"


def test_documents_are_valid_json_in_ascii_for_names_in_another_encoding() -> None:
    shown = render_document({"na\udcffme": ["\udce9", ("\u202e",)]})
    assert json.loads(shown) == {"na\\xffme": ["\\xe9", ["\u202e"]]}
    assert shown.isascii()


def test_roles_that_are_adopted_as_they_are_leave_nothing_to_do() -> None:
    kept, declared = PlannedObject(Key("shop", "a"), action=PlannedAction.CLAIM), PlannedObject(Key("shop", "b"))
    assert not PlanReport((kept, declared)).differs
    same = "nothing to do: 3 objects: 3 adopted as they are\n"
    assert printed(PlanReport((kept, kept, kept)), terminal=False) == same
    mixed = printed(PlanReport((kept, declared)), terminal=False)
    assert mixed == "nothing to do: 2 objects: 1 adopted as they are, 1 as declared\n"
    changed = printed(PlanReport((planned("x"), kept)), terminal=False)
    assert changed.splitlines()[-1] == "2 objects: 1 change, 1 adopted as they are"
    assert json.loads(render_json(PlanReport((kept,))))["counts"] == {"claim": 1}


def test_what_was_not_compared_is_not_counted_as_declared() -> None:
    same, hidden = PlannedObject(Key("shop", "a")), PlannedObject(Key("shop", "b"), notes=(NOT_COMPARED,))
    suspended = PlannedObject(Key("shop", "c"), notes=(SUSPENDED,))
    assert printed(PlanReport((same, same)), terminal=False) == "nothing to do: 2 objects as declared\n"
    assert printed(PlanReport((suspended,)), terminal=False) == "nothing to do: 1 object: 1 suspended\n"
    assert printed(PlanReport((suspended, hidden, same)), terminal=False) == (
        "nothing to do: 3 objects: 1 as declared, 1 as declared (password not compared), 1 suspended\n"
    )
    assert printed(PlanReport((planned("x"), hidden)), terminal=False).splitlines()[-1] == (
        "2 objects: 1 change, 1 as declared (password not compared)"
    )


def test_an_object_with_nothing_to_do_is_listed_if_it_has_another_note() -> None:
    kept = PlannedObject(Key("shop", "a"), action=PlannedAction.CLAIM, notes=("the API server rejects it",))
    said = printed(PlanReport((kept,)), terminal=False)
    assert said == (
        "= shop/a: claim\n    the API server rejects it\n\nnothing to do: 1 object: 1 adopted as they are\n"
    )


def test_a_plan_names_from_whom_else_a_membership_is_revoked() -> None:
    changes = (
        RevokeMembership("app", "a", ("postgres",), ("b", "c")),
        RevokeOption("app", "d", "admin", ("postgres",), ("e",)),
        RevokeOption("app", "f", "set", ("postgres",)),
    )
    assert [one.words for one in describe_changes(changes, None)] == [
        'memberOf: "a", and what it granted to "b", "c"',
        'memberOf: admin of "d", and what it granted to "e"',
        'memberOf: set of "f"',
    ]
