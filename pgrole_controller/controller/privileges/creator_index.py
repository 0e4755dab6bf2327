"""Which roles' declarations name a role whose default privileges they are about (createdBy).

Any role can have changes of roles announced, and thousands of roles may name creators: whoever answers only looks here.
One publication takes no longer than that role's own declarations need.
"""

from collections.abc import Collection

from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.request import Key


class CreatorIndex:
    """Of the published roles of one server, except adoptees, by database and creator."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, set[Key]]] = {}

    def replace(self, before: Grantee | None, after: Grantee | None) -> None:
        """The role is published as `after` instead of `before`; None: not at all."""
        if before is not None and after is not None and _declare_the_same(before, after):
            return
        if before is not None:
            for database, name in _creators_of(before):
                self._remove(database, name, before.key)
        if after is not None:
            for database, name in _creators_of(after):
                self._keys.setdefault(database, {}).setdefault(name, set()).add(after.key)

    def find(self, database: str, creators: Collection[str] | None) -> frozenset[Key]:
        """Returns the roles that name one of these there; None: any."""
        keys = self._keys.get(database, {})
        named = keys.keys() if creators is None else keys.keys() & set(creators)
        return frozenset[Key]().union(*(keys[name] for name in named))

    def _remove(self, database: str, name: str, key: Key) -> None:
        names = self._keys[database]
        names[name].discard(key)
        if not names[name]:
            del names[name]
        if not names:
            del self._keys[database]


def _declare_the_same(one: Grantee, other: Grantee) -> bool:
    """Whether they share their declarations, as `Grantee.with_owned` has it."""
    same = one.declared is other.declared and one.former is other.former
    return same and (one.adoptee is None) is (other.adoptee is None)


def _creators_of(grantee: Grantee) -> set[tuple[str, str]]:
    """Returns databases, and creators that are named there."""
    if grantee.adoptee is not None:
        return set()
    found = {(database, name) for database, one in grantee.declared.items() for name in one.created_by}
    former = ((database, one) for database, some in grantee.former.items() for one in some)
    return found | {(database, name) for database, one in former for name in one.created_by}
