"""The privileges that the controller's role lacks, and the SQL that grants them.

PostgreSQL decides what is permitted; this module explains a refusal by the rights of the controller's role. The rules
are those of CREATE ROLE, ALTER ROLE and GRANT in PostgreSQL's reference, for 16 and later ("scoped": a role with
CREATEROLE can alter only roles that it has ADMIN on, and give only attributes that it has) and for earlier versions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import asyncpg

from pgrole_controller.core.ddl import divide_names, grants_in_schema, render_option, spell_identifier
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.diff import (
    Change,
    Create,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetParameter,
    field_names,
)
from pgrole_controller.core.errors import NOT_UTF8, PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.parameters import ALL
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.role import POWERS
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors

#: Since this version, superusers can grant other roles the right to set a parameter (GRANT SET ON PARAMETER).
PARAMETER_GRANTS_VERSION = 150_000

_ADMIN = "WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of the controller's role that one plan needs.

    `attributes`: those of `POWERS` that it has. `administered`: it has ADMIN on the plan's role, or creates it.
    `administers`: the groups that it has ADMIN on. `acts_for`: the grantors whose privileges it has. `superusers`: the
    superusers among both. `settable`: the parameters that it may set. `keeping`: the databases in which the plan's
    RESET ALL would keep parameters; empty: of all databases. `scoped`: PostgreSQL 16 and later.
    """

    own_role: str
    attributes: frozenset[str] = frozenset()
    is_superuser: bool = False
    is_replication: bool = False
    administered: bool = True
    administers: frozenset[str] = frozenset()
    acts_for: frozenset[str] = frozenset()
    superusers: frozenset[str] = frozenset()
    settable: frozenset[str] = frozenset()
    keeping: frozenset[str] = frozenset()
    scoped: bool = True
    parameter_grants: bool = True


@dataclass(frozen=True, slots=True)
class MissingPrivilege:
    """Why one change is not permitted. `sql`: for a superuser; it `allows` the change, otherwise it makes it."""

    change: Change
    sql: str
    allows: bool = True


async def read_rights(connection: Connection, plan: Plan, *, scoped: bool, parameter_grants: bool) -> Rights:
    """The rights that the plan needs. Raises PgRoleError."""
    groups = [
        change.membership.role if isinstance(change, GrantMembership) else change.group
        for change in plan.changes
        if isinstance(change, GrantMembership | RevokeMembership | RevokeOption)
    ]
    grantors = [
        grantor
        for change in plan.changes
        if isinstance(change, RevokeMembership | RevokeOption)
        for grantor in change.grantors
    ]
    legible, illegible = divide_names((*groups, *grantors))
    set_parameters = [change for change in plan.changes if isinstance(change, SetParameter)]
    parameters = [change.name for change in set_parameters if change.name != ALL]
    resets = {change.database or "" for change in set_parameters if change.name == ALL}
    with translate_errors():
        row = await connection.fetchrow(
            queries.inspect("rights"), plan.oid or 0, legible, illegible, parameters, bool(resets)
        )
        granted = await connection.fetch(queries.inspect("granted_parameters"), parameters) if parameter_grants else []
    if row is None:
        raise Transient(Reason.SERVER_NOT_READY, "the controller's role no longer exists: create it again")
    return Rights(
        own_role=row["own_role"].decode(errors="replace"),
        attributes=frozenset(row["attributes"]),
        is_superuser=row["is_superuser"],
        is_replication=row["is_replication"],
        administered=row["administered"],
        administers=_names(row["administers"]),
        acts_for=_names(row["acts_for"]),
        superusers=_names(row["superusers"]),
        settable=frozenset((*row["settable"], *(one["name"] for one in granted))),
        keeping=_names(row["keeping"]) & resets,
        scoped=scoped,
        parameter_grants=parameter_grants,
    )


def _names(names: Iterable[bytes]) -> frozenset[str]:
    return frozenset(name.decode(errors="surrogateescape") for name in names)


def explain(error: PgRoleError, missing: Sequence[MissingPrivilege]) -> PgRoleError:
    """The error with the missing grants; unchanged if none is known."""
    if not missing:
        return error
    fields = ", ".join(field_names(tuple(one.change for one in missing)))
    allow = "; ".join(dict.fromkeys(one.sql for one in missing if one.allows))
    do = "; ".join(dict.fromkeys(one.sql for one in missing if not one.allows))
    text = f"{error.message} ({fields})"
    text += f". A superuser can allow it: {allow}" if allow else ""
    text += f". Only a superuser can do it: {do}" if do else ""
    if NOT_UTF8.search(allow + do):
        text += ". Names with \\x are not UTF-8: run this in a database with their encoding"
    if any(isinstance(one.change, Drop) for one in missing):
        return add_way_out(Waiting(Reason.DROP_BLOCKED, text))
    return Refused(error.reason, text)


def find_missing_privileges(changes: Iterable[Change], rights: Rights) -> tuple[MissingPrivilege, ...]:
    """The privileges that these changes lack, in order; one change can lack several."""
    plan = tuple(changes)
    removed = {change.attribute for change in plan if isinstance(change, SetAttribute) and change.value is False}
    return tuple(one for change in plan for one in _missing_privileges(change, rights, removed))


def _missing_privileges(change: Change, rights: Rights, removed: Set[str]) -> Iterator[MissingPrivilege]:
    """`removed`: the attributes that the same plan takes away."""
    if "superuser" in rights.attributes:
        return
    match change:
        case Create(role=role):
            yield from _reach(change, role.name, rights, removed)
            for attribute in POWERS:
                if attribute != "createrole" and getattr(role, attribute):
                    yield from _give(change, role.name, attribute, True, rights)
        case GrantMembership(role=name, membership=membership):
            yield from _join(change, name, membership.role, rights)
        case RevokeMembership(role=name, group=group, grantors=grantors):
            yield from _leave(change, name, group, "", grantors, rights)
        case RevokeOption(role=name, group=group, option=option, grantors=grantors):
            yield from _leave(change, name, group, f"{option.upper()} OPTION FOR ", grantors, rights)
        case Rename(old=name):
            yield from _reach(change, name, rights, removed)
        case SetAttribute(role=name, attribute=attribute, value=value) if attribute in POWERS:
            yield from _reach(change, name, rights, removed)
            if rights.is_superuser and "superuser" not in removed:
                return
            if attribute != "createrole":
                yield from _give(change, name, attribute, bool(value), rights)
        case SetParameter(role=name, name=parameter):
            yield from _reach(change, name, rights, removed)
            if (change.database or "") in rights.keeping:  # what else is set there is not known
                reset = replace(change, name=ALL, value=None)
                yield MissingPrivilege(change, _spell_parameter(reset, spell_identifier(name)), allows=False)
            elif parameter not in rights.settable and parameter != ALL:
                yield _parameter(change, name, rights)
        case _:
            yield from _reach(change, change.role, rights, removed)


def _reach(change: Change, name: str, rights: Rights, removed: Set[str]) -> Iterator[MissingPrivilege]:
    """The privileges for any ALTER ROLE of the role. Nothing allows it for a superuser that is to remain one."""
    role, own = spell_identifier(name), spell_identifier(rights.own_role)
    blocking = "superuser" if rights.is_superuser else ""
    if rights.is_replication and not rights.scoped and isinstance(change, SetAttribute):
        blocking = blocking or "replication"
    if blocking and blocking not in removed and not isinstance(change, Drop):
        yield MissingPrivilege(change, _spell(change, role), allows=False)
        return
    if "createrole" not in rights.attributes:
        yield MissingPrivilege(change, f"ALTER ROLE {own} CREATEROLE")
    if blocking:
        yield MissingPrivilege(change, f"ALTER ROLE {role} NO{blocking.upper()}", allows=isinstance(change, Drop))
    if rights.scoped and not rights.administered:
        yield MissingPrivilege(change, f"GRANT {role} TO {own} {_ADMIN}")


def _spell(change: Change, role: str) -> str:
    """The statement of an ALTER ROLE, for people. It contains no password."""
    match change:
        case Rename(new=new):
            return f"ALTER ROLE {role} RENAME TO {spell_identifier(new)}"
        case SetAttribute(attribute="password"):
            return f"ALTER ROLE {role} PASSWORD …"
        case SetAttribute(attribute=attribute, value=value):
            return f"ALTER ROLE {role} {render_option(attribute, value)}"
        case SetParameter():
            return _spell_parameter(change, role)
        case _:
            return f"COMMENT ON ROLE {role} IS …"


def _give(change: Change, name: str, attribute: str, value: bool, rights: Rights) -> Iterator[MissingPrivilege]:
    """The privileges for setting one of `POWERS`."""
    word = attribute.upper()
    if attribute == "superuser" or (attribute != "createdb" and not rights.scoped):
        verb = "CREATE" if isinstance(change, Create) else "ALTER"
        sql = f"{verb} ROLE {spell_identifier(name)} {word if value else f'NO{word}'}"
        yield MissingPrivilege(change, sql, allows=False)
    elif rights.scoped and attribute not in rights.attributes:
        yield MissingPrivilege(change, f"ALTER ROLE {spell_identifier(rights.own_role)} {word}")


def _join(change: Change, name: str, group: str, rights: Rights) -> Iterator[MissingPrivilege]:
    joined, own = spell_identifier(group), spell_identifier(rights.own_role)
    if group in rights.superusers:
        yield MissingPrivilege(change, f"GRANT {joined} TO {spell_identifier(name)}", allows=False)
    elif group not in rights.administers:
        if rights.scoped:
            yield MissingPrivilege(change, f"GRANT {joined} TO {own} {_ADMIN}")
        elif "createrole" not in rights.attributes:
            yield MissingPrivilege(change, f"ALTER ROLE {own} CREATEROLE")


def _leave(
    change: Change, name: str, group: str, what: str, grantors: Iterable[str], rights: Rights
) -> Iterator[MissingPrivilege]:
    """The privileges for REVOKE. Since PostgreSQL 16 it needs the privileges of the grantor. ADMIN on the group does
    not help where only a superuser can revoke: what a superuser granted, or a membership in one.
    """
    own = spell_identifier(rights.own_role)
    revoke = f"REVOKE {what}{spell_identifier(group)} FROM {spell_identifier(name)}"
    givers = grantors if rights.scoped else ()
    by = {grantor: f" GRANTED BY {spell_identifier(grantor)}" for grantor in givers} or {"": ""}
    beyond = [grantor for grantor in by if not rights.superusers.isdisjoint((group, grantor))]
    if len(beyond) < len(by):
        yield from _join(change, name, group, rights)
    for grantor, granted in by.items():
        if grantor in beyond:
            yield MissingPrivilege(change, revoke + granted, allows=False)
        elif grantor and grantor not in rights.acts_for:
            sql = f"GRANT {spell_identifier(grantor)} TO {own} WITH INHERIT TRUE, SET FALSE"
            yield MissingPrivilege(change, sql)


def _parameter(change: SetParameter, role: str, rights: Rights) -> MissingPrivilege:
    if rights.parameter_grants:
        quoted = _spell_name(change.name)
        return MissingPrivilege(change, f"GRANT SET ON PARAMETER {quoted} TO {spell_identifier(rights.own_role)}")
    return MissingPrivilege(change, _spell_parameter(change, spell_identifier(role)), allows=False)


def _spell_parameter(change: SetParameter, role: str) -> str:
    where = "" if change.database is None else f" IN DATABASE {spell_identifier(change.database)}"
    verb, end = ("RESET", "") if change.value is None else ("SET", " = …")
    return f"ALTER ROLE {role}{where} {verb} {_spell_name(change.name)}{end}"


def _spell_name(parameter: str) -> str:
    return "ALL" if parameter == ALL else ".".join(spell_identifier(part) for part in parameter.split("."))


async def explain_access(connection: Connection, error: PgRoleError) -> PgRoleError:
    """The error of a session with the grants that are missing in the home database. Raises PgRoleError."""
    row = await _read_access(connection)
    missing = [] if row is None else list(_missing(row))
    return error if row is None or not missing else _with_grants(error, Reason.SERVER_NOT_READY, row, missing)


async def explain_database_access(connection: Connection, error: PgRoleError) -> PgRoleError:
    """The same for another database, in which a superuser installed schema pgrole, or that lacks language plpgsql."""
    row = await _read_access(connection)
    if row is not None and (missing := find_missing_language(row)):
        return Transient(error.reason, missing)
    return error if row is None or not _may_not_use(row) else _with_grants_in_schema(error, row)


async def explain_own_schema(connection: Connection, error: PgRoleError, said: str) -> PgRoleError | None:
    """The same for a statement that PostgreSQL refused; None unless no statement can be run, or it names a part of
    schema pgrole (`said`, in the server's language) that the controller's role may not use.
    """
    row = await _read_access(connection)
    if row is not None and (missing := find_missing_language(row)):
        return Transient(error.reason, missing)
    if row is None or not _may_not_use(row):
        return None
    names = {"pgrole", *(name.decode(errors="replace") for name in row["forbidden"])}
    if names.isdisjoint(re.findall(r"\w+", said)):
        return None
    return _with_grants_in_schema(Transient(error.reason, f"schema pgrole: {said}"), row)


def find_missing_language(row: asyncpg.Record | Mapping[str, Any]) -> str:
    """Returns why the controller cannot run its statements in this database, with the remedy; empty if it can. `row`:
    of sql/inspect/access.sql.
    """
    return describe_missing_language(row["language"], row["own_role"], row["database"])


def describe_missing_language(usable: bool | None, role: bytes, database: bytes) -> str:
    """`usable`: as `language` in sql/inspect/access.sql. `role`: the controller's."""
    if usable:
        return ""
    own, name = (spell_identifier(one.decode(errors="replace")) for one in (role, database))
    why, remedy = "is missing", "CREATE EXTENSION plpgsql"
    if usable is not None:
        why, remedy = f"may not be used by role {own}", f"GRANT USAGE ON LANGUAGE plpgsql TO {own}"
    return f"language plpgsql, which the controller needs, {why} in database {name}: run {remedy} there"


def _may_not_use(row: asyncpg.Record) -> bool:
    """Whether schema pgrole exists, and the controller's role neither owns nor may use it."""
    return row["present"] and not row["owns"] and not row["uses"]


async def _read_access(connection: Connection) -> asyncpg.Record | None:
    with translate_errors():
        return await connection.fetchrow(queries.inspect("access"))


def _with_grants(error: PgRoleError, reason: Reason, row: asyncpg.Record, missing: Iterable[str]) -> PgRoleError:
    database = spell_identifier(row["database"].decode(errors="replace"))
    return Transient(reason, f"{error.message}. A superuser can allow it, in database {database}: {'; '.join(missing)}")


def _with_grants_in_schema(error: PgRoleError, row: asyncpg.Record) -> PgRoleError:
    own = spell_identifier(row["own_role"].decode(errors="replace"))
    return _with_grants(error, error.reason, row, grants_in_schema(own, truncate=True))


def _missing(row: asyncpg.Record) -> Iterator[str]:
    own, database = (spell_identifier(row[name].decode(errors="replace")) for name in ("own_role", "database"))
    if not row["sees_system"]:
        yield f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {own}"
    if not row["present"] and not row["creates"]:
        yield f"GRANT CREATE ON DATABASE {database} TO {own}"
    if not row["sees_versions"] and (row["owns"] or not row["present"]):
        yield f"GRANT SELECT (oid, xmin) ON pg_catalog.pg_authid TO {own}"
    if _may_not_use(row):
        yield from grants_in_schema(own, truncate=False)
    elif row["present"] and not row["owns"]:
        yield "the output of `pgrole-controller sql`"
