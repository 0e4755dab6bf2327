"""Memberships of a role: what it holds, and by whose grants.

Since PostgreSQL 16 a membership can be granted several times, by different grantors and with different options; what
counts is all of them together. Before, there is one grant, and only its ADMIN option.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Grant:
    """One row of pg_auth_members."""

    grantor: str
    admin: bool
    inherit: bool
    set: bool
    by_creation: bool = False  # PostgreSQL made it, for the role that created the other


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership with the options that hold, whoever granted them.

    `grants` and `passed_on` (the members to whom it was granted further by this role, whose grants end with it) say how
    it came about and are not compared: two memberships with the same options are the same.
    """

    role: str
    admin: bool = False
    inherit: bool = True
    set: bool = True
    grants: tuple[Grant, ...] = field(default=(), compare=False)
    passed_on: tuple[str, ...] = field(default=(), compare=False)

    @property
    def by_creation(self) -> bool:
        """It is there because the role created the other: no object need declare it."""
        return bool(self.grants) and all(grant.by_creation for grant in self.grants)


def membership_of(role: str, grants: Iterable[Grant], passed_on: Iterable[str] = ()) -> Membership:
    """The membership that these grants add up to."""
    rows = tuple(grants)
    return Membership(
        role=role,
        admin=any(row.admin for row in rows),
        inherit=any(row.inherit for row in rows),
        set=any(row.set for row in rows),
        grants=rows,
        passed_on=tuple(passed_on),
    )
