"""What `doctor` finds: one answer to one question, with its state and the commands that fix it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.names import count_things


class FindingState(StrEnum):
    """UNKNOWN: the question could not be answered; the finding says why and how to answer it."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class RemedyKind(StrEnum):
    """SQL: one statement, for a superuser in the remedy's database. SHELL: one command line."""

    SQL = "sql"
    SHELL = "shell"


@dataclass(frozen=True, slots=True)
class Remedy:
    """`database`: where a statement must run; empty: in any database of the server."""

    kind: RemedyKind
    command: str
    database: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """`area`: `cluster`, or `server NAME`. `check`: what was asked, in lower case. `text`: what was found."""

    area: str
    check: str
    state: FindingState
    text: str
    remedies: tuple[Remedy, ...] = ()


def sql(template: str, *names: str, database: str = "") -> tuple[Remedy, ...]:
    """A statement whose `{}` become quoted names; empty if a name cannot be sent as UTF-8."""
    try:
        return (Remedy(RemedyKind.SQL, template.format(*map(quote_identifier, names)), database),)
    except ValueError:
        return ()


def shell(*commands: str) -> tuple[Remedy, ...]:
    return tuple(Remedy(RemedyKind.SHELL, command) for command in commands)


def has_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.state is FindingState.PROBLEM for finding in findings)


def summarize(findings: Sequence[Finding]) -> str:
    """One line, e.g. `2 problems, 1 warning, 0 unknown, 12 ok`."""
    counts = {state: sum(finding.state is state for finding in findings) for state in FindingState}
    return ", ".join(
        (
            count_things(counts[FindingState.PROBLEM], "problem"),
            count_things(counts[FindingState.WARNING], "warning"),
            f"{counts[FindingState.UNKNOWN]} unknown",
            f"{counts[FindingState.OK]} ok",
        )
    )


def describe(finding: Finding) -> dict[str, Any]:
    """The JSON form."""
    return {
        "area": finding.area,
        "check": finding.check,
        "state": finding.state.value,
        "found": finding.text,
        "remedies": [
            {"kind": one.kind.value, "command": one.command, "database": one.database or None}
            for one in finding.remedies
        ],
    }
