"""Prints a plan: as a coloured difference with its SQL, as JSON, or as an SQL script for psql."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pgrole_controller.commands.output import render_document, spell_error
from pgrole_controller.commands.plan_model import (
    IDLE,
    NOT_COMPARED,
    SUSPENDED,
    PlannedAction,
    PlannedChange,
    PlannedObject,
    PlannedSql,
    PlanReport,
    Sign,
)
from pgrole_controller.core.ddl import spell_printably
from pgrole_controller.core.errors import NOT_UTF8, PgRoleError
from pgrole_controller.core.names import count_things
from pgrole_controller.ending import make_printable
from pgrole_controller.postgres.queries import SCRIPT_SETTINGS

_COLOURS = {Sign.ADDED: "green", Sign.REMOVED: "red", Sign.CHANGED: "yellow"}
_ACTIONS: dict[PlannedAction, tuple[str, str]] = {
    PlannedAction.CREATE: ("+", "green"),
    PlannedAction.CHANGE: ("~", "yellow"),
    PlannedAction.ADOPT: ("~", "yellow"),
    PlannedAction.CLAIM: ("=", "dim"),
    PlannedAction.DROP: ("-", "red"),
    PlannedAction.REVOKE: ("-", "red"),
    PlannedAction.REPORT: ("?", "cyan"),
    PlannedAction.REFUSE: ("!", "red"),
    PlannedAction.WAIT: (".", "cyan"),
    PlannedAction.NOTHING: ("=", "dim"),
    PlannedAction.FAIL: ("!", "bold red"),
}
_AS_DECLARED = "as declared"
_COUNTED = {PlannedAction.NOTHING: _AS_DECLARED, PlannedAction.CLAIM: "adopted as they are"}
_COUNTED_NOTES = {SUSPENDED: "suspended", NOT_COMPARED: "as declared (password not compared)"}


def print_plan(console: Console, report: PlanReport) -> None:
    """Prints what differs, and one line with counts at the end. Only counts objects without differences, unless a note
    says more than the counts do.
    """
    for note in report.notes:
        console.print(Text(f"note: {make_printable(note)}", style="dim"))
    for one in report.objects:
        if one.action not in IDLE or set(one.notes) - _COUNTED_NOTES.keys():
            console.print(_render(one), soft_wrap=True)
    console.print(_summarize(report))


def render_json(report: PlanReport) -> str:
    """The shape that docs/plan.md describes."""
    counts = {action.value: count for action, count in report.count().items()}
    shown = {"notes": list(report.notes), "counts": counts, "objects": [_describe(one) for one in report.objects]}
    return render_document(shown)


def render_sql(report: PlanReport) -> str:
    """A script for psql: roles first, then memberships in roles that it creates, then privileges by database."""
    lines = [
        "-- What the controller would do. It does this itself, and records it: this script is for review.",
        "-- Passwords are not part of it.",
        *(f"-- note: {make_printable(note)}" for note in report.notes),
        r"\set ON_ERROR_STOP on",
        *SCRIPT_SETTINGS,
    ]
    for one in report.objects:
        lines += _remarks(one)
    servers = list(dict.fromkeys(one.server for one in report.objects if one.sql))
    for server in servers:
        if len(servers) > 1:
            lines += ["", f"-- PgServer {make_printable(server)}: connect to it before you run the following"]
        lines += _script([one for one in report.objects if one.server == server])
    return "\n".join(lines) + "\n"


def _render(one: PlannedObject) -> Text:
    sign, colour = _ACTIONS[one.action]
    text = Text()
    role = f' role "{make_printable(one.role)}"' if one.role else ""
    server = f" on {make_printable(one.server)}" if one.server else ""
    place = f"  ({make_printable(one.place)})" if one.place else ""
    text.append(f"{sign} {make_printable(one.name)}: {one.action.value}{role}{server}", style=colour)
    text.append(f"{place}\n", style="dim")
    for change in one.changes:
        text.append(f"    {_line(change)}\n", style=_COLOURS[change.sign])
    for refusal in one.refusals:
        text.append(f"    ! refused, {_problem(refusal)}\n", style="red")
    for wait in one.waits:
        text.append(f"    . waits, {_problem(wait)}\n", style="cyan")
    for error in one.errors:
        text.append(f"    ! not evaluated, {_problem(error)}\n", style="bold red")
    for note in one.notes:
        text.append(f"    {make_printable(note)}\n", style="dim")
    for some in one.sql:
        where = f' in database "{make_printable(some.database)}"' if some.database else ""
        where += ", after the roles that other objects create" if some.late else ""
        text.append(f"    SQL{where}:\n", style="dim")
        for statement in some.statements:
            text.append(f"      {make_printable(spell_printably(statement))};\n")
    return text


def _line(change: PlannedChange) -> str:
    database = f' (database "{change.database}")' if change.database else ""
    left = "" if change.corrected else " [only reported]"
    return f"{change.sign} {make_printable(change.words + database)}{left}"


def _problem(error: PgRoleError) -> str:
    return f"{error.reason}: {make_printable(spell_error(error))}"


def _summarize(report: PlanReport) -> Text:
    counted = report.count()
    if not report.objects:
        return Text("nothing to do: no objects")
    objects = count_things(len(report.objects), "object")
    labels = {action: Counter(_label(one) for one in report.objects if one.action is action) for action in counted}
    if labels.get(PlannedAction.NOTHING) == {_AS_DECLARED: len(report.objects)}:
        return Text(f"nothing to do: {objects} {_AS_DECLARED}", style="green")
    words = ", ".join(f"{count} {label}" for some in labels.values() for label, count in sorted(some.items()))
    if set(counted) <= IDLE:
        return Text(f"nothing to do: {objects}: {words}", style="green")
    return Text(f"{objects}: {words}", style="bold")


def _label(one: PlannedObject) -> str:
    notes = _COUNTED_NOTES if one.action is PlannedAction.NOTHING else {}
    counted = _COUNTED.get(one.action, one.action.value)
    return next((label for note, label in notes.items() if note in one.notes), counted)


def _describe(one: PlannedObject) -> dict[str, Any]:
    return {
        "namespace": one.key.namespace if one.key else None,
        "name": one.key.name if one.key else None,
        "place": one.place or None,
        "role": one.role or None,
        "server": one.server or None,
        "action": one.action.value,
        "changes": [_describe_change(change) for change in one.changes],
        "sql": [
            {
                "database": some.database or None,
                "afterOthers": some.late,
                "statements": list(some.statements),
            }
            for some in one.sql
        ],
        "drift": list(one.drift),
        "notes": list(one.notes),
        "refusals": [_describe_error(error) for error in one.refusals],
        "waits": [_describe_error(error) for error in one.waits],
        "errors": [_describe_error(error) for error in one.errors],
    }


def _describe_change(change: PlannedChange) -> dict[str, Any]:
    return {
        "sign": change.sign.value,
        "field": change.field,
        "text": change.words,
        "database": change.database or None,
        "corrected": change.corrected,
    }


def _describe_error(error: PgRoleError) -> dict[str, str]:
    return {"reason": error.reason.value, "message": spell_error(error)}


def _remarks(one: PlannedObject) -> Iterator[str]:
    """Returns what the script cannot do."""
    for word, some in (("refused", one.refusals), ("waits", one.waits), ("not evaluated", one.errors)):
        for error in some:
            yield f"-- {make_printable(one.name)}: {word}, {error.reason}: {make_printable(spell_error(error))}"


def _script(objects: Sequence[PlannedObject]) -> Iterator[str]:
    for late in (False, True):
        for one in objects:
            for some in one.sql:
                if not some.database and some.late is late:
                    yield from _transaction(one, some)
    for database in sorted({some.database for one in objects for some in one.sql if some.database}):
        connect = _connect(database)
        yield ""
        if connect is None:
            why = "psql cannot be told this name, so its statements are left out"
            yield f"-- database {make_printable(database)}: {why}"
            continue
        yield connect
        yield from SCRIPT_SETTINGS
        for one in objects:
            for some in one.sql:
                if some.database == database:
                    yield from _transaction(one, some)


def _transaction(one: PlannedObject, some: PlannedSql) -> Iterator[str]:
    yield ""
    yield f"-- {make_printable(one.name)}: {one.action.value}"
    yield "BEGIN;"
    yield from (f"{spell_printably(statement)};" for statement in some.statements)
    yield "COMMIT;"


def _connect(database: str) -> str | None:
    r"""Returns the line `\connect` with a connection string, as pg_dump writes it, so that no name is mistaken for one.

    Returns None for a name that no line of psql can contain.
    """
    if NOT_UTF8.search(database) or any(not sign.isprintable() for sign in database):
        return None
    value = database.replace("\\", "\\\\").replace("'", "\\'")
    name = f"dbname='{value}'".replace('"', '""')
    return f'\\connect -reuse-previous=on "{name}"'
