"""One drift of a role, as a reconcile found it, for attribution and the history."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgrole_controller.core.privileges.privilege_result import DriftAuthor
from pgrole_controller.core.role import FIELD_NAMES, Membership, Role, to_moment

#: Maximum number of characters of one value, and of all values of one drift.
LONGEST_VALUE = 60
LONGEST_VALUES = 400

#: Fields that have no value to show, or a secret one.
_SILENT = frozenset({"password"})


@dataclass(frozen=True, slots=True)
class RoleDrift:
    """`at`: when it was corrected, by the server's clock, as the claim has it; for a drift that is only reported, when
    it was first seen. `values`: by field, what was declared and observed, for people. `uid`: of the object.
    """

    role_name: str
    oid: int
    uid: str
    fields: tuple[str, ...]
    corrected: bool
    at: datetime
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def is_observed_as(self, other: "RoleDrift") -> bool:
        """Whether the same fields of the same object were observed with the same values."""
        ours, theirs = ({name: pair.get("observed") for name, pair in one.values.items()} for one in (self, other))
        return (self.uid, self.fields, ours) == (other.uid, other.fields, theirs)


@dataclass(frozen=True, slots=True)
class FoundCause:
    """Who caused a drift of a role."""

    drift: RoleDrift
    by: DriftAuthor


def compare_values(fields: Iterable[str], declared: Role, observed: Role | None) -> dict[str, dict[str, str]]:
    """The declared and the observed value of each of these fields, cut; never anything about passwords."""
    values: dict[str, dict[str, str]] = {}
    left = LONGEST_VALUES
    for attribute, name in FIELD_NAMES.items():
        if name not in fields or name in _SILENT or observed is None:
            continue
        sides = getattr(declared, attribute), getattr(observed, attribute)
        pair = {
            "declared": _describe(attribute, _differing_first(*sides)),
            "observed": _describe(attribute, _differing_first(*reversed(sides))),
        }
        left -= len(name) + sum(len(text.encode(errors="surrogateescape")) for text in pair.values())
        if left < 0:
            break
        values[name] = pair
    return values


def _differing_first(value: Any, other: Any) -> Any:  # noqa: ANN401 -- of any field
    """Returns a list with what the other one lacks first, since long ones are cut."""
    if not isinstance(value, tuple):
        return value
    known = frozenset(other)
    return sorted(value, key=known.__contains__)


def _describe(attribute: str, value: Any) -> str:  # noqa: ANN401 -- of any field
    match attribute:
        case "valid_until":
            text = _describe_moment(value)
        case "member_of":
            text = ", ".join(map(_describe_membership, value))
        case "parameters":
            text = _describe_parameters(value)
        case "database_parameters":
            text = "; ".join(f"{database}: {_describe_parameters(some)}" for database, some in value)
        case _:
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def _describe_membership(held: Membership) -> str:
    named = ((held.admin, "ADMIN"), (not held.inherit, "INHERIT false"), (not held.set, "SET false"))
    options = ", ".join(words for present, words in named if present)
    return f"{held.role} ({options})" if options else held.role


def _describe_moment(value: int | None) -> str:
    if value is None:
        return ""
    try:
        return to_moment(value).isoformat()
    except OverflowError:
        return "-infinity" if value < 0 else "infinity"


def _describe_parameters(parameters: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value[:20]}" for name, value in parameters)
