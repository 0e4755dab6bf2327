"""The differences between what is wanted and what is there, in the order in which they are brought in."""

from dataclasses import dataclass, fields, replace
from typing import Any

from pgrole_controller.core.role import FIELD_NAMES, Role


@dataclass(frozen=True, slots=True)
class Create:
    """The role is not there."""

    role: Role

    @property
    def field(self) -> str:
        return "role"


@dataclass(frozen=True, slots=True)
class Rename:
    """The role is there under another name."""

    old: str
    new: str

    @property
    def field(self) -> str:
        return "name"


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """One attribute of CREATE ROLE differs. `attribute` is a field of `Role`."""

    role: str
    attribute: str
    value: Any

    @property
    def field(self) -> str:
        return FIELD_NAMES[self.attribute]


@dataclass(frozen=True, slots=True)
class SetComment:
    role: str
    comment: str | None

    @property
    def field(self) -> str:
        return "comment"


@dataclass(frozen=True, slots=True)
class Drop:
    role: str

    @property
    def field(self) -> str:
        return "role"


Change = Create | Rename | SetAttribute | SetComment | Drop

_ATTRIBUTES = tuple(field.name for field in fields(Role) if field.name not in ("name", "comment"))


def diff(wanted: Role, there: Role | None) -> tuple[Change, ...]:
    """What turns `there` into `wanted`; empty when they are equal."""
    if there is None:
        return (Create(wanted), *_comment(wanted, None))
    renamed: tuple[Change, ...] = () if there.name == wanted.name else (Rename(there.name, wanted.name),)
    attributes = tuple(
        SetAttribute(wanted.name, name, getattr(wanted, name))
        for name in _ATTRIBUTES
        if getattr(wanted, name) != getattr(there, name)
    )
    return (*renamed, *attributes, *_comment(wanted, there.comment))


def _comment(wanted: Role, there: str | None) -> tuple[Change, ...]:
    return () if wanted.comment == there else (SetComment(wanted.name, wanted.comment),)


def apply(changes: tuple[Change, ...], there: Role | None) -> Role | None:
    """What is there after the changes: `apply(diff(wanted, there), there) == wanted`."""
    role = there
    for change in changes:
        match change:
            case Create(role=created):
                role = replace(created, comment=None)
            case Drop():
                role = None
            case Rename(new=new):
                role = replace(_some(role), name=new)
            case SetAttribute(attribute=attribute, value=value):
                role = replace(_some(role), **{attribute: value})
            case SetComment(comment=comment):
                role = replace(_some(role), comment=comment)
    return role


def field_names(changes: tuple[Change, ...]) -> tuple[str, ...]:
    """The fields that differ, in the words of the spec, each once."""
    return tuple(dict.fromkeys(change.field for change in changes))


def _some(role: Role | None) -> Role:
    if role is None:
        raise ValueError("a change of a role that is not there")
    return role
