"""Differences of roles and privileges in words, one line each. Never shows a password or its verifier."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pgrole_controller.commands.plan_model import PlannedChange, Sign
from pgrole_controller.core.ddl import render_valid_until, spell_identifier
from pgrole_controller.core.diff import (
    Change,
    Create,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetComment,
    SetParameter,
    name_members,
)
from pgrole_controller.core.parameters import ALL, UNREADABLE
from pgrole_controller.core.password import DesiredPassword, PasswordOrigin
from pgrole_controller.core.privileges.acl import TABLE_KINDS, AclChange, DefaultAclChange, ObjectKind
from pgrole_controller.core.privileges.default_acl_decision import name_type
from pgrole_controller.core.role import FIELD_NAMES, Membership, Role

#: Maximum number of objects of one schema, kind and privilege that are listed by name; more are counted.
_LISTED = 5

_LONGEST = 200
_PLURALS = {
    ObjectKind.DATABASE: "databases",
    ObjectKind.SCHEMA: "schemas",
    ObjectKind.SEQUENCE: "sequences",
    ObjectKind.ROUTINE: "routines",
    **dict.fromkeys(TABLE_KINDS, "tables and views"),
}

_CLAIMS_UNSEEN = (
    "claims not read, since {}: existing roles are assumed to belong to the objects that declare them, and earlier "
    "declarations are not seen. To see them: {}"
)
CLAIMS_UNREADABLE = _CLAIMS_UNSEEN.format(
    "the login may not read table pgrole.claim",
    "GRANT USAGE ON SCHEMA pgrole and SELECT ON pgrole.claim TO the login",
)
CLAIMS_UNSAFE = _CLAIMS_UNSEEN.format(
    "the owner of table pgrole.claim could run code as the login",
    "connect as the controller's role, or as a login that is not a superuser and may read the table",
)
CLAIMLESS = (
    "schema pgrole has no claims in this database, so it is not the controller's home database: every role counts as "
    "never managed. Connect to the home database, spec.connection.database of the PgServer"
)


def describe_suspension(database: str, role: str, *, of_home: bool) -> str:
    """A setting that suspends changes. Empty names: in any database, for any role. `of_home`: it holds in the home
    database, too.
    """
    held = " in ".join([f'role "{role}"'] * bool(role) + [f'database "{database}"'] * bool(database)) or "all roles"
    who = "if that is its role, the controller" if role else "the controller"
    what = "nothing" if of_home else "no privileges there"
    of = f"DATABASE {spell_identifier(database)}" if database else "ROLE ALL"
    if role:
        of = f"ROLE {spell_identifier(role)}{f' IN {of}' if database else ''}"
    remedy = f"ALTER {of} RESET pgrole.suspend"
    return f"pgrole.suspend is on for {held}: {who} changes {what} until a superuser runs {remedy}"


def describe_changes(
    changes: Iterable[Change], before: Role | None, *, corrected: bool = True
) -> tuple[PlannedChange, ...]:
    """`before`: the role as it is; None if it does not exist."""
    found: list[PlannedChange] = []
    for change in changes:
        for sign, words in _describe(change, before):
            database = (change.database or "") if isinstance(change, SetParameter) else ""
            found.append(PlannedChange(sign, change.field, words, database, corrected))
    return tuple(found)


def describe_password(password: DesiredPassword) -> str:
    """Returns what the controller sets for a new role; empty if it sets nothing."""
    match password.origin:
        case PasswordOrigin.SECRET:
            return f'password: from Secret "{password.secret}", key "{password.key}"'
        case PasswordOrigin.GENERATED:
            return "password: generated"
        case _:
            return ""


def describe_privileges(
    changes: Sequence[AclChange],
    defaults: Sequence[DefaultAclChange],
    database: str,
    cascades: Mapping[AclChange, tuple[str, ...]],
) -> tuple[PlannedChange, ...]:
    """Names each object, or counts them where a pattern concerns many. `cascades`: roles that lose what the role
    granted them.
    """
    grouped: dict[tuple[object, ...], list[AclChange]] = {}
    for change in changes:
        kind, schema = change.object.kind.widest, change.object.schema
        form = (
            change.revoke,
            change.privileges,
            change.columns,
            change.option_only,
            kind,
            schema,
            cascades.get(change),
        )
        grouped.setdefault(form, []).append(change)
    found: list[PlannedChange] = []
    for some in grouped.values():
        one = some[0]
        sign = Sign.REMOVED if one.revoke else Sign.ADDED
        what = f"{'grant option for ' if one.option_only else ''}{', '.join(one.privileges)}"
        if one.columns:
            what += f" ({', '.join(one.columns)})"
        schema = f" in schema {one.object.schema}" if one.object.kind is not ObjectKind.SCHEMA else ""
        if len(some) > _LISTED:
            words = [f"{what} on {len(some)} {_PLURALS.get(one.object.kind, 'objects')}{schema}"]
        else:
            words = [f"{what} on {each.object.label}" for each in some]
        more = _describe_cascade(cascades.get(one, ()))
        found += [PlannedChange(sign, "privileges", f"{line}{more}", database) for line in words]
    for each in defaults:
        what = f"{'grant option for ' if each.option_only else ''}{', '.join(each.privileges)}"
        place = f" in schema {each.schema}" if each.schema else ""
        text = f"{what} on new {name_type(each.object_type)} of {each.creator_name}{place}"
        found.append(PlannedChange(Sign.REMOVED if each.revoke else Sign.ADDED, "privileges", text, database))
    return tuple(found)


def _describe(change: Change, before: Role | None) -> Iterator[tuple[Sign, str]]:
    match change:
        case Create(role=role):
            yield from _describe_new(role)
        case Drop():
            yield Sign.REMOVED, "role"
        case Rename(old=old, new=new):
            yield Sign.CHANGED, f"name: {_quote(old)} -> {_quote(new)}"
        case SetAttribute(attribute="password", value=value):
            yield Sign.REMOVED if value is None else Sign.CHANGED, "password: none" if value is None else "password"
        case SetAttribute(attribute=attribute, value=value):
            held = None if before is None else getattr(before, attribute)
            yield Sign.CHANGED, f"{FIELD_NAMES[attribute]}: {_value(attribute, held)} -> {_value(attribute, value)}"
        case SetComment(comment=comment):
            held = None if before is None else before.comment
            yield _sign(held, comment), f"comment: {_change(held, comment)}"
        case GrantMembership(membership=membership):
            held_one = next((one for one in before.member_of if one.role == membership.role), None) if before else None
            sign = Sign.ADDED if held_one is None else Sign.CHANGED
            yield sign, f"memberOf: {_quote(membership.role)}{_options(membership)}"
        case RevokeMembership(group=group, cascades_to=cascades_to):
            yield Sign.REMOVED, f"memberOf: {_quote(group)}{_describe_cascade(cascades_to)}"
        case RevokeOption(group=group, option=option, cascades_to=cascades_to):
            yield Sign.REMOVED, f"memberOf: {option} of {_quote(group)}{_describe_cascade(cascades_to)}"
        case SetParameter(database=database, name=name, value=value):
            yield _describe_parameter(database, name, value, before)


def _describe_cascade(members: tuple[str, ...]) -> str:
    return f", and what it granted to {name_members(members)}" if members else ""


def _describe_new(role: Role) -> Iterator[tuple[Sign, str]]:
    plain = Role(role.name)
    for name, spelled in FIELD_NAMES.items():
        if name in ("name", "comment", "password", "member_of", "parameters", "database_parameters"):
            continue
        value = getattr(role, name)
        if value != getattr(plain, name):
            yield Sign.ADDED, f"{spelled}: {_value(name, value)}"


def _describe_parameter(database: str | None, name: str, value: str | None, before: Role | None) -> tuple[Sign, str]:
    if name == ALL and value is None:
        return Sign.REMOVED, "parameters: all, since they cannot be compared"
    held = None
    if before is not None:
        some = before.parameters if database is None else dict(before.database_parameters).get(database, ())
        held = dict(some).get(name)
    return _sign(held, value), f"{name}: {_change(held, value)}"


def _sign(before: object, after: object) -> Sign:
    return Sign.ADDED if before is None else Sign.REMOVED if after is None else Sign.CHANGED


def _change(before: str | None, after: str | None) -> str:
    shown = [_quote(text) for text in (before, after) if text is not None]
    return " -> ".join(shown)


def _value(attribute: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if attribute == "valid_until":
        try:
            return "never" if value is None else render_valid_until(value if isinstance(value, int) else None)
        except OverflowError:
            return "out of range"
    if attribute == "connection_limit" and value == -1:
        return "no limit"
    return str(value)


def _options(membership: Membership) -> str:
    options = [name for name, value in (("admin", membership.admin),) if value]
    options += [
        f"{name} false" for name, value in (("inherit", membership.inherit), ("set", membership.set)) if not value
    ]
    return f" ({', '.join(options)})" if options else ""


def _quote(text: str) -> str:
    if text.startswith(UNREADABLE):
        return "(not readable)"
    return f'"{text}"' if len(text) <= _LONGEST else f'"{text[:_LONGEST]}…"'
