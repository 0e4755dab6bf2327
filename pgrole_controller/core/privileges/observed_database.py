"""What was read of one database for some roles, and which entries of its ACLs are whose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pgrole_controller.core.privileges.acl import AclEntry, DefaultAcl, ObjectId, ObservedAcl
from pgrole_controller.core.privileges.acl_index import AclIndex
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts

#: By role: its entries, and their privileges if no entry is of a column or has a grant option.
HeldByRole = Mapping[int, tuple[Sequence[AclEntry], frozenset[str] | None]]
NOTHING_HELD: tuple[tuple[AclEntry, ...], frozenset[str]] = ((), frozenset())


@dataclass(frozen=True)
class ObservedDatabase:
    """What was read of one database for some grantees.

    - `acls`: objects with the entries of these grantees; the database itself and schemas included.
    - `defaults`: default privileges for these grantees; None: not read.
    - `roles`: oids of the existing roles among the declared creators, by name.
    - `schemas`: every schema that exists.
    - `complete`: `acls` has every object. Otherwise nothing is reported as missing, and only these are decided.
    - `columns`: existing columns of objects that have declared columns; an object left out is one whose columns are
      not known.
    - `largest_acl`: number of entries in the largest ACL of a table, view or sequence; 0 if not `complete`.
    """

    facts: DatabaseFacts
    acls: Sequence[ObservedAcl] = ()
    defaults: Sequence[DefaultAcl] | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    schemas: frozenset[str] = frozenset()
    complete: bool = True
    columns: Mapping[ObjectId, frozenset[str]] = field(default_factory=dict)
    largest_acl: int = 0
    _by_grantee: dict[int, HeldByRole] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def size(self) -> int:
        """Number of objects and of their entries: a table has entries for up to 1,600 columns."""
        return sum(1 + len(one.entries) for one in self.acls)

    @cached_property
    def index(self) -> AclIndex:
        """Finds what concerns one grantee."""
        return AclIndex(self.acls, self.defaults or ())

    def entries_of(self, acl: ObservedAcl, grantee: int) -> tuple[Sequence[AclEntry], frozenset[str] | None]:
        """Returns the grantee's entries, and their privileges if no entry is of a column or has a grant option."""
        return self.held_by_role(acl).get(grantee, NOTHING_HELD)

    def held_by_role(self, acl: ObservedAcl) -> HeldByRole:
        """As `entries_of`, for each grantee that has entries.

        Objects with the same ACL share the tuple of entries, which is sorted by grantee once. `acls` keeps it alive, so
        its id stands for it.
        """
        known = self._by_grantee.get(id(acl.entries))
        if known is None:
            found: dict[int, list[AclEntry]] = {}
            for entry in acl.entries:
                found.setdefault(entry.grantee, []).append(entry)
            known = self._by_grantee[id(acl.entries)] = {one: (some, _plain(some)) for one, some in found.items()}
        return known


def _plain(entries: Sequence[AclEntry]) -> frozenset[str] | None:
    special = any(entry.column or entry.grantable for entry in entries)
    return None if special else frozenset(entry.privilege for entry in entries)
