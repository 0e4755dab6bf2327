"""What the controller grants again: with REVOKE … CASCADE, other roles lose what is declared for them.

The script grants it in the same transaction, so that they never lack it, as plans of roles with nothing to change say.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgrole_controller.commands.plan_cascades import GrantOptions
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import AclChange, AclEntry, ObjectId
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision
from pgrole_controller.core.privileges.grant_ddl import GrantStatement, statements
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.observed_database import ObservedDatabase


@dataclass(slots=True)
class PlannedRole:
    """What is decided about one role. `options`, `cascades`: as find_options and find_cascades return them.

    `restored`: what its changes take from other roles although it is declared. `gone`: what the changes of earlier
    roles take from this one.
    """

    grantee: Grantee
    decision: PrivilegeDecision
    options: GrantOptions
    cascades: dict[AclChange, tuple[str, ...]]
    restored: list[AclChange] = field(default_factory=list)
    gone: dict[ObjectId, set[AclEntry]] = field(default_factory=dict)

    def render(self, version: int) -> Sequence[GrantStatement]:
        """Returns what is left to do once the changes of earlier roles are made. `version`: server_version_num. Raises
        ValueError as `statements` does.
        """
        left = [one for one in self.decision.changes if not _is_gone(one, self.gone.get(one.object.id, ()))]
        apart = {change.object.id for change in self.cascades}  # as the controller does, all changes of such an object
        return (
            *statements([one for one in left if one.object.id not in apart], self.decision.default_changes, version),
            *statements([one for one in left if one.object.id in apart], version=version, cascade=True),
            *statements(self.restored, version=version),
        )


#: Decides about a role as if this were observed.
Decide: TypeAlias = Callable[[PlannedRole, ObservedDatabase], PrivilegeDecision | PgRoleError]
#: What the changes of one role take from others that were read.
_Taken: TypeAlias = Mapping[AclChange, frozenset[AclEntry]]


def restore(some: Sequence[PlannedRole], observed: ObservedDatabase, decide: Decide) -> None:
    """Adds to each role what is granted to others again, and leaves in its `cascades` those that lose something for
    good. `some`: in the order of the script.
    """
    taken = [_find_lost(one, observed) for one in some]
    lost: dict[ObjectId, set[AclEntry]] = {}
    for by_change in taken:
        for change, entries in by_change.items():
            if entries:
                lost.setdefault(change.object.id, set()).update(entries)
    if not lost:
        return
    left = _without_entries(observed, lost)
    losers = {entry.grantee for entries in lost.values() for entry in entries}
    for place, loser in enumerate(some):
        if loser.grantee.oid not in losers:
            continue
        for by_change in taken[:place]:
            for change, entries in by_change.items():
                loser.gone.setdefault(change.object.id, set()).update(entries)
        decision = decide(loser, left)
        if isinstance(decision, PrivilegeDecision):
            _restore_role(some, taken, loser, decision, left)


def _restore_role(
    some: Sequence[PlannedRole],
    taken: Sequence[_Taken],
    loser: PlannedRole,
    decision: PrivilegeDecision,
    left: ObservedDatabase,
) -> None:
    """`decision`: about the role once others have taken from it what they take. `left`: what is observed then."""
    oid = loser.grantee.oid
    granted = {piece for one in decision.changes if not one.revoke for piece in _pieces_of(one)}
    planned = {piece for one in loser.decision.changes if not one.revoke for piece in _pieces_of(one)}
    held = {acl.object.id: left.entries_of(acl, oid)[0] for acl in left.index.concerning(oid, ())}
    last: dict[ObjectId, PlannedRole] = {}
    for one, by_change in zip(some, taken, strict=True):
        for change, entries in by_change.items():
            own = [entry for entry in entries if entry.grantee == oid]
            if not own:
                continue
            last[change.object.id] = one
            here = {(privilege, column) for each, privilege, column in granted if each == change.object.id}
            if all(_keeps(entry, held.get(change.object.id, ()), here) for entry in own):
                names = one.cascades[change]
                one.cascades[change] = tuple(name for name in names if name != loser.grantee.role_name)
    for change in decision.changes:
        if not change.revoke and change.object.id in last:
            last[change.object.id].restored += _find_unplanned(change, planned)


def _find_unplanned(change: AclChange, planned: Collection[tuple[ObjectId, str, str]]) -> Iterator[AclChange]:
    """Yields the part of a GRANT that is not planned anyhow, if there is one."""
    missing = [piece for piece in _pieces_of(change) if piece not in planned]
    privileges = tuple(one for one in change.privileges if any(one == piece[1] for piece in missing))
    columns = tuple(one for one in change.columns if any(one == piece[2] for piece in missing))
    if privileges:
        yield replace(change, privileges=privileges, columns=columns)


def _find_lost(role: PlannedRole, observed: ObservedDatabase) -> _Taken:
    acls = {acl.object.id: acl.entries for acl in observed.acls} if role.cascades else {}
    return {
        change: _follow(
            [
                (role.grantee.oid, privilege, column)
                for privilege, column in role.options.get(change.object.id, ())
                if privilege in change.privileges and (not change.columns or column in change.columns)
            ],
            acls.get(change.object.id, ()),
        )
        for change in role.cascades
    }


def _follow(taken: Sequence[tuple[int, str, str]], entries: Sequence[AclEntry]) -> frozenset[AclEntry]:
    """`taken`: grant options, each of a role for a privilege and a column. Whoever loses its last one loses with it
    what it granted.
    """
    granted: defaultdict[tuple[int, str, str], list[AclEntry]] = defaultdict(list)
    options: defaultdict[tuple[int, str, str], set[AclEntry]] = defaultdict(set)
    for entry in entries:
        granted[entry.grantor, entry.privilege, entry.column].append(entry)
        if entry.grantable:
            options[entry.grantee, entry.privilege, entry.column].add(entry)
    lost: set[AclEntry] = set()
    left = list(taken)
    while left:
        option = left.pop()
        for entry in granted.pop(option, ()):
            if entry.grantee == option[0]:
                continue
            lost.add(entry)
            passed = entry.grantee, entry.privilege, entry.column
            if entry.grantable and options[passed] <= lost:
                left.append(passed)
    return frozenset(lost)


def _without_entries(observed: ObservedDatabase, lost: Mapping[ObjectId, Collection[AclEntry]]) -> ObservedDatabase:
    acls = [
        replace(acl, entries=tuple(one for one in acl.entries if one not in lost[acl.object.id]))
        if acl.object.id in lost
        else acl
        for acl in observed.acls
    ]
    return replace(observed, acls=acls)


def _pieces_of(change: AclChange) -> Iterator[tuple[ObjectId, str, str]]:
    """Yields object, privilege and column of each privilege; an empty column for the whole object."""
    for privilege in change.privileges:
        for column in change.columns or ("",):
            yield change.object.id, privilege, column


def _keeps(entry: AclEntry, held: Iterable[AclEntry], granted: Iterable[tuple[str, str]]) -> bool:
    """Whether a role still has what it loses with this entry. `held`: its entries afterwards. `granted`: privileges and
    columns that it gets.
    """
    some = {(entry.privilege, ""), (entry.privilege, entry.column)}
    return not some.isdisjoint(granted) or any((one.privilege, one.column) in some for one in held)


def _is_gone(change: AclChange, gone: Collection[AclEntry]) -> bool:
    """Whether these entries are all that a REVOKE in a grantor's name would take, who may have nothing left there."""
    known = {(one.grantee, one.grantor_name, one.privilege, one.column) for one in gone} if change.revoke else ()
    return bool(known) and all(
        (change.grantee, change.grantor, privilege, column) in known for _, privilege, column in _pieces_of(change)
    )
