"""The page of one role: what is declared beside what is in the database, conditions, drifts, privileges, graph."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from shlex import quote
from typing import Any

from pgrole_controller.console.graph import Memberships, RoleNeighbours
from pgrole_controller.console.object_fields import (
    LONGEST_TEXT,
    read_flag,
    read_map,
    read_maps,
    read_number,
    read_text,
    read_texts,
    read_time,
)
from pgrole_controller.console.object_state import ConditionView, ObjectState, is_current, judge, read_conditions
from pgrole_controller.console.remedies import ReasonAdvice, describe_outlook, find_role_remedy
from pgrole_controller.console.role_summary import RoleSummary, summarize
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Role

_MOST_NAMES = 40

#: Before the fields that differ, in a message of the controller.
REPORTED = "spec.drift.policy is Report: "

#: States of a database whose privileges are not ready, by reason. Others are tried again.
_NOT_READY = {
    "DriftReported": ObjectState.DRIFT,
    "Suspended": ObjectState.SUSPENDED,
    "Progressing": ObjectState.WORKING,
    "NotAllowed": ObjectState.STALLED,
    "InvalidSpec": ObjectState.STALLED,
    "Protected": ObjectState.STALLED,
}

#: Defaults of the attributes that are on or off, by name.
_FLAGS = {one.name: one.default for one in fields(Role) if isinstance(one.default, bool)}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of spec: `declared` in words, whether that is the default, and what is known of the database.

    `fit`: ready, drift, working, ignored or unmanaged. `observed`: the same in words.
    """

    name: str
    declared: tuple[str, ...]
    is_default: bool
    fit: str
    observed: str


@dataclass(frozen=True, slots=True)
class DeclaredPrivilege:
    """One line of spec.privileges: on what, which privileges, and exceptions."""

    target: str
    privileges: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class DatabaseView:
    """Privileges in one database. `declared` is False while only former ones are being revoked there. `state` is None
    if the console does not keep it, because the object is too long.
    """

    name: str
    declared: bool
    state: ObjectState | None
    reason: str
    message: str
    lines: tuple[DeclaredPrivilege, ...]


@dataclass(frozen=True, slots=True)
class RoleView:
    summary: RoleSummary
    message: str
    remedy: ReasonAdvice
    outlook: str
    conditions: tuple[ConditionView, ...]
    fields: tuple[FieldRow, ...]
    oid: int | None
    system_identifier: str
    created: datetime | None
    next_rotation: datetime | None
    policy: str
    deletion: str
    databases: tuple[DatabaseView, ...]
    graph: RoleNeighbours
    argument: str  # the role's name in a command line
    server_argument: str


def view_role(
    key: Key, found: Mapping[str, Any], summaries: Sequence[RoleSummary], passwords: bool | None = None
) -> RoleView:
    """Makes the page of the object `found`. `summaries`: of all roles, for the graph. `passwords`: whether the
    controller notices changes of passwords on its server; None if that is unknown.
    """
    spec, status = read_map(found, "spec"), read_map(found, "status")
    summary, verdict = summarize(key, found), judge(found)
    return RoleView(
        summary=summary,
        message=verdict.message,
        remedy=find_role_remedy(verdict.reason),
        outlook=describe_outlook(verdict.state),
        conditions=tuple(read_conditions(found)),
        fields=tuple(_rows(found, summary, passwords)),
        oid=read_number(status, "role", "oid"),
        system_identifier=read_text(status, "server", "systemIdentifier", most=64),
        created=read_time(found, "metadata", "creationTimestamp"),
        next_rotation=read_time(status, "nextRotation"),
        policy=read_text(spec, "drift", "policy", most=64) or "Correct",
        deletion=read_text(spec, "deletionPolicy", most=64) or "Retain",
        databases=tuple(_databases(spec, status, summary.left_out)),
        graph=Memberships(summaries, summary.server).around(summary),
        argument=f"{'-- ' * summary.role.startswith('-')}{quote(summary.role)}",
        server_argument=f"--server {quote(summary.server)}",
    )


def _rows(found: Mapping[str, Any], summary: RoleSummary, passwords: bool | None) -> Iterator[FieldRow]:
    """`passwords`: whether the controller notices changes of passwords on this server; None if that is unknown."""
    spec = read_map(found, "spec")
    ignored = read_texts(spec, "drift", "ignore", most=64)
    differing = _find_differing(found) if summary.state is ObjectState.DRIFT else frozenset[str]()
    values = {
        read_text(each, "name", most=256): read_text(each, "observed")
        for each in read_maps(found, "status", "approval", "fields", most=64)
    }
    known = is_current(found) and differing is not None
    absent = differing is not None and "role" in differing  # or another role has its name
    for name, declared, is_default, managed in _declared(spec):
        if f"spec.{name}" in summary.left_out:
            declared, is_default, managed = ("left out here: too long",), False, True
        if not managed:
            fit, observed = "unmanaged", "not managed"
        elif known and differing and name in differing:
            value = values.get(name)
            fit, observed = "drift", f"differs, and is left as it is{f': {value}' if value else ''}"
        elif name in ignored:
            fit, observed = "ignored", "left to others (drift.ignore)"
        elif not known or absent or summary.state not in (ObjectState.READY, ObjectState.DRIFT):
            fit, observed = "working", "not confirmed"
        elif name == "password" and not passwords:
            fit, observed = (
                "ignored",
                "applied; the controller "
                + ("cannot notice changes on this server" if passwords is False else "may not notice changes"),
            )
        elif summary.state is ObjectState.READY:
            fit, observed = "ready", "as declared"
        else:
            fit, observed = "ready", "not reported as different"
        yield FieldRow(name, declared, is_default, fit, observed)


def _find_differing(found: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the fields that the controller reports as different now, from the message of Ready. None: unknown.

    The history does not tell: a drift in it may have been undone since, and a later one has other fields.
    """
    message = judge(found).message
    listed = set(message.partition(REPORTED)[2].partition(";")[0].split(", "))
    fields = {"role", "connectionSecret", *(name for name, *_ in _declared({}))}
    states = [read_text(each, "reason", most=128) for each in read_maps(found, "status", "privileges", most=64)]
    if "DriftReported" in states:
        return frozenset({"privileges", *(listed if listed <= fields else ())})
    return frozenset(listed) if listed <= fields else None


def _declared(spec: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], bool, bool]]:
    """Yields name, value in words, whether that is the default, and whether the controller manages it.

    The API server writes some defaults into the spec, so what its author wrote is unknown.
    """
    for name, default in _FLAGS.items():
        flag = read_flag(spec, name)
        value = default if flag is None else flag
        yield name, ("yes" if value else "no",), value is default, True
    limit = read_number(spec, "connectionLimit")
    unlimited = limit in (None, -1)
    yield "connectionLimit", ("no limit" if unlimited else f"{limit:,}",), unlimited, True
    expiry, comment = read_text(spec, "validUntil", most=64), read_text(spec, "comment")
    yield "validUntil", (expiry or "never expires",), not expiry, True
    yield "comment", (comment or "none",), not comment, True
    yield "password", (_describe_password(spec),), "password" not in spec, "password" in spec
    groups, parameters = tuple(_describe_memberships(spec)), tuple(_describe_parameters(read_map(spec, "parameters")))
    yield "memberOf", groups or ("none",), not groups, True
    yield "parameters", parameters or ("none",), not parameters, True
    in_databases = tuple(
        f"{read_text(each, 'database', most=256)}: {line}"
        for each in read_maps(spec, "databaseParameters", most=32)
        for line in _describe_parameters(read_map(each, "parameters"))
    )
    yield "databaseParameters", in_databases or ("none",), not in_databases, True
    databases = tuple(read_text(each, "database", most=256) for each in read_maps(spec, "privileges", most=32))
    described = (f"in {', '.join(databases)}",) if databases else ("not managed",)
    yield "privileges", described, not databases, bool(databases)


def _describe_password(spec: Mapping[str, Any]) -> str:
    password = read_map(spec, "password")
    if "secretRef" in password:
        return f"from Secret {read_text(password, 'secretRef', 'name', most=256)}"
    if "generate" in password:
        every = read_text(password, "generate", "rotateEvery", most=64)
        return f"generated, replaced every {every}" if every else "generated"
    return "none (disabled)" if read_flag(password, "disabled") else "not managed"


def _describe_memberships(spec: Mapping[str, Any]) -> Iterator[str]:
    for each in read_maps(spec, "memberOf", most=64):
        options = [
            "with ADMIN" if read_flag(each, "admin") else "",
            "without INHERIT" if read_flag(each, "inherit") is False else "",
            "without SET" if read_flag(each, "set") is False else "",
        ]
        noted = ", ".join(option for option in options if option)
        name = read_text(each, "role", most=256)
        yield f"{name} ({noted})" if noted else name


def _describe_parameters(parameters: Mapping[str, Any]) -> Iterator[str]:
    for name, value in list(parameters.items())[:64]:
        yield f"{str(name)[:256]} = {value if isinstance(value, str) else json.dumps(value, default=str)}"[
            :LONGEST_TEXT
        ]


def _databases(spec: Mapping[str, Any], status: Mapping[str, Any], left_out: Sequence[str]) -> Iterator[DatabaseView]:
    states = {read_text(each, "database"): each for each in read_maps(status, "privileges", most=64)}
    declared = {read_text(each, "database"): each for each in read_maps(spec, "privileges", most=32)}
    for name in dict.fromkeys([*declared, *states]):
        state = states.get(name)
        ready = read_flag(state, "ready")
        reason = read_text(state, "reason", most=128)
        verdict: ObjectState | None
        if state is None:
            verdict = None if "status.privileges" in left_out else ObjectState.NEW
        elif ready:
            verdict = ObjectState.READY
        else:
            verdict = _NOT_READY.get(reason, ObjectState.RETRYING)
        lines = tuple(_lines(declared[name])) if name in declared else ()
        yield DatabaseView(name, name in declared, verdict, reason, read_text(state, "message"), lines)


def _lines(privileges: Mapping[str, Any]) -> Iterator[DeclaredPrivilege]:
    if on_database := read_texts(privileges, "onDatabase", most=8):
        yield DeclaredPrivilege("the database itself", on_database, "")
    creators = read_texts(privileges, "createdBy", most=32)
    for each in read_maps(privileges, "schemas", most=64):
        excepted = _list_names(read_texts(each, "except", most=64))
        yield DeclaredPrivilege(
            f"everything in schema {read_text(each, 'name', most=256)}",
            read_texts(each, "access", most=8),
            f"except {excepted}" if excepted else "",
        )
    for each in read_maps(privileges, "objects", most=64):
        schema = read_text(each, "schema", most=256)
        columns = _list_names(read_texts(each, "columns", most=128))
        names = _list_names([f"{schema}.{name}" for name in read_texts(each, "names", most=128)])
        yield DeclaredPrivilege(
            f"{read_text(each, 'kind', most=64)} {names}",
            read_texts(each, "privileges", most=16),
            f"columns {columns}" if columns else "",
        )
    if creators:
        yield DeclaredPrivilege(
            f"objects that {_list_names(creators)} will create in these schemas", ("same access",), ""
        )
    if unmanaged := read_texts(privileges, "unmanaged", most=32):
        yield DeclaredPrivilege(f"schemas {_list_names(unmanaged)}", ("left alone",), "")


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
