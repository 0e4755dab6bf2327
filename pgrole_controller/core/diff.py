"""The differences between desired and observed state, in the order in which they are applied."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pgrole_controller.core.parameters import Parameters
from pgrole_controller.core.role import FIELD_NAMES, Membership, Password, Role


@dataclass(frozen=True, slots=True)
class Create:
    """The role does not exist."""

    field: ClassVar[str] = "role"
    role: Role


@dataclass(frozen=True, slots=True)
class Rename:
    """The role exists under another name."""

    field: ClassVar[str] = "name"
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """An attribute of CREATE ROLE differs. `attribute` is a field of `Role`."""

    role: str
    attribute: str
    value: Any

    @property
    def field(self) -> str:
        return FIELD_NAMES[self.attribute]


@dataclass(frozen=True, slots=True)
class SetComment:
    field: ClassVar[str] = "comment"
    role: str
    comment: str | None


@dataclass(frozen=True, slots=True)
class GrantMembership:
    """A membership, or one of its options, is missing."""

    field: ClassVar[str] = "memberOf"
    role: str
    membership: Membership


@dataclass(frozen=True, slots=True)
class RevokeMembership:
    """A membership that is not declared. `cascades_to` are the members to whom the role has granted it in turn."""

    field: ClassVar[str] = "memberOf"
    role: str
    group: str
    grantors: tuple[str, ...]
    cascades_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RevokeOption:
    """An undeclared option (admin, inherit or set) of a declared membership."""

    field: ClassVar[str] = "memberOf"
    role: str
    group: str
    option: str
    grantors: tuple[str, ...]
    cascades_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetParameter:
    """Sets a role's parameter in one database, or in all if `database` is None. The value None resets it.

    The name may be `parameters.ALL` with the value None, which resets all of them.
    """

    role: str
    database: str | None
    name: str
    value: str | None

    @property
    def field(self) -> str:
        return "parameters" if self.database is None else "databaseParameters"


@dataclass(frozen=True, slots=True)
class Drop:
    field: ClassVar[str] = "role"
    role: str


Change = (
    Create
    | Rename
    | SetAttribute
    | SetComment
    | RevokeMembership
    | RevokeOption
    | GrantMembership
    | SetParameter
    | Drop
)

_OTHERS = ("name", "comment", "member_of", "parameters", "database_parameters")
_ATTRIBUTES = tuple(field.name for field in fields(Role) if field.name not in _OTHERS)
_OPTIONS = ("admin", "inherit", "set")

#: Maximum number of members that are named. One more is read.
_NAMED = 5


def diff(desired: Role, observed: Role | None) -> tuple[Change, ...]:
    """Returns the changes that turn `observed` into `desired`; empty if they are equal."""
    if observed is None:
        return (Create(desired), *_beside(desired, Role(desired.name)))
    renamed: tuple[Change, ...] = () if observed.name == desired.name else (Rename(observed.name, desired.name),)
    attributes = tuple(
        SetAttribute(desired.name, name, getattr(desired, name))
        for name in _ATTRIBUTES
        if getattr(desired, name) != getattr(observed, name)
    )
    return (*renamed, *attributes, *_beside(desired, observed))


def describe_cascades(changes: Iterable[Change]) -> tuple[str, ...]:
    """Returns what these changes revoke from others: `membership in "a" from "b", "c"`, which the role had granted."""
    found: dict[str, tuple[str, ...]] = {}
    for change in changes:
        if isinstance(change, RevokeMembership | RevokeOption) and change.cascades_to:
            found[change.group] = change.cascades_to
    return tuple(f'membership in "{group}" from {name_members(members)}' for group, members in found.items())


def name_members(members: tuple[str, ...]) -> str:
    """Returns the quoted names of members from whom a membership is revoked, as far as they were read."""
    return ", ".join(f'"{name}"' for name in members[:_NAMED]) + (" and others" if len(members) > _NAMED else "")


def set_password(changes: tuple[Change, ...]) -> Password | None:
    """Returns the password that these changes set, or None."""
    for change in changes:
        match change:
            case Create(role=created):
                return created.password
            case SetAttribute(attribute="password", value=Password() as password):
                return password
    return None


def _beside(desired: Role, observed: Role) -> tuple[Change, ...]:
    """Differences that need statements of their own, after the role's own."""
    comment = () if desired.comment == observed.comment else (SetComment(desired.name, desired.comment),)
    return (*comment, *_memberships(desired, observed), *_parameters(desired, observed))


def _memberships(desired: Role, observed: Role) -> Iterator[Change]:
    """Yields revocations first: a grant may be impossible while another one exists."""
    declared = {membership.role: membership for membership in desired.member_of}
    held = {membership.role: membership for membership in observed.member_of}
    for group, membership in held.items():
        grantors = tuple(grant.grantor for grant in membership.grants)
        if group not in declared:
            if membership.by_creation and desired.createrole:
                continue
            yield RevokeMembership(desired.name, group, grantors, membership.passed_on)
            continue
        for option in _OPTIONS:
            if getattr(membership, option) and not getattr(declared[group], option):
                givers = tuple(grant.grantor for grant in membership.grants if getattr(grant, option))
                cascades_to = membership.passed_on if option == "admin" else ()
                yield RevokeOption(desired.name, group, option, givers, cascades_to)
    for group, membership in declared.items():
        if group not in held or any(
            getattr(membership, option) and not getattr(held[group], option) for option in _OPTIONS
        ):
            yield GrantMembership(desired.name, membership)


def _parameters(desired: Role, observed: Role) -> Iterator[Change]:
    yield from _parameters_in(None, desired.name, desired.parameters, observed.parameters)
    declared, held = dict(desired.database_parameters), dict(observed.database_parameters)
    for database in sorted(declared.keys() | held.keys()):
        yield from _parameters_in(database, desired.name, declared.get(database, ()), held.get(database, ()))


def _parameters_in(database: str | None, role: str, desired: Parameters, observed: Parameters) -> Iterator[Change]:
    declared, held = dict(desired), dict(observed)
    for name in sorted(declared.keys() | held.keys()):
        if declared.get(name) != held.get(name):
            yield SetParameter(role, database, name, declared.get(name))


def field_names(changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Names of the fields that differ, as in the spec, without duplicates."""
    return tuple(dict.fromkeys(change.field for change in changes))
