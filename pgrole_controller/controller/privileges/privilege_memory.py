"""What one database's worker remembers between rounds.

Losing it with the process only makes it less exact which difference counts as drift. It belongs to a database, not to
its name: another database with that name has none of what was applied, though some oids are the same in both.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgrole_controller.controller.privileges.privilege_records import UnrecordedDrifts
from pgrole_controller.controller.privileges.read_pace import FurtherReads
from pgrole_controller.controller.privileges.role_memory import AppliedState, NewObjects, RoleMemory
from pgrole_controller.core.contest import Moment, postpone
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId
from pgrole_controller.core.privileges.acl_screening import GranteeIndex, PrivilegeTerms
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.failed_changes import FailedChanges

#: Maximum number of objects noted between two complete reads. Of more, most were dropped again.
MOST_NOTED = 20_000


#: What of an object decides whether it counts as another one. A plain tuple of texts and numbers costs the garbage
#: collector nothing.
ObjectIdentity: TypeAlias = tuple[str, str, str, int, bool, bool]


@dataclass(slots=True)
class PrivilegeMemory:
    """`database`: its oid, once a session had one. `applied`: by oid of the role, where the database stores nothing.
    `with_columns`: oids of tables with declared columns. `absent_creators`: roles that declarations name and that do
    not exist. `adoptees`: reads for these. `largest_acl`: at the last complete read. `failed`: what could not be
    changed, on this connection or earlier ones.
    """

    database: int | None = None
    applied: dict[int, AppliedState] = field(default_factory=dict)
    further: FurtherReads = field(default_factory=FurtherReads)
    adoptees: FurtherReads = field(default_factory=FurtherReads)
    drifts: UnrecordedDrifts = field(default_factory=UnrecordedDrifts)
    with_columns: frozenset[int] = frozenset()
    absent_creators: frozenset[str] = frozenset()
    largest_acl: int = 0
    failed: FailedChanges = field(default_factory=FailedChanges)
    _roles: dict[Key, RoleMemory] = field(default_factory=dict)
    _kept: tuple[Grantee, ...] = ()
    _resting: frozenset[Key] = frozenset()  # suspended, ignored or refused: nothing is granted to these
    _reach: tuple[tuple[Grantee, ...], PrivilegeReach] | None = None
    _index: GranteeIndex | None = None
    _weight: int | None = None
    _terms: dict[Key, tuple[Grantee, PrivilegeTerms]] = field(default_factory=dict)
    _equal: dict[PrivilegeTerms, PrivilegeTerms] = field(default_factory=dict)
    _known: dict[ObjectId, ObjectIdentity] | None = None
    _size: int = 0  # number of objects that were known after the last complete read
    _new: dict[ObjectId, int] = field(default_factory=dict)  # as in NewObjects
    _before: dict[ObjectId, DatabaseObject | None] = field(default_factory=dict)  # as in NewObjects
    _reads: int = 0  # number of reads so far
    _replaced: bool = False  # a known object was identified otherwise by a read of some objects
    _meanwhile: dict[ObjectId, ObjectIdentity] | None = None  # noted since a complete read began; None: outside of one
    _columns_meanwhile: frozenset[int] = frozenset()

    def of_database(self, oid: int) -> "PrivilegeMemory":
        """Returns the memory for a session in the database with this oid: a new one, with the drifts that are not
        recorded yet, if the last session was in another.
        """
        if self.database not in (None, oid):
            return PrivilegeMemory(oid, drifts=self.drifts)
        self.database = oid
        return self

    def of_next_worker(self) -> "PrivilegeMemory":
        """Returns the memory for the next worker of the database: what was applied, and the drifts that are not
        recorded yet, including those that the former worker adds until it ends. Where the database stores nothing,
        only the objects known now tell which are new then.
        """
        following = PrivilegeMemory(self.database, self.applied, drifts=self.drifts)
        if self.applied and self._known is not None:
            following._known, following._size = dict(self._known), self._size
            following._new, following._before, following._reads = dict(self._new), dict(self._before), self._reads
            following._roles = {key: one.of_next_worker() for key, one in self._roles.items()}
        return following

    def role(self, grantee: Grantee, database: str) -> RoleMemory:
        """Returns the memory of a role, with what it now declares."""
        known = self._roles.get(grantee.key)
        if known is None or known.uid != grantee.uid:
            known = self._roles[grantee.key] = RoleMemory(grantee.uid)
        known.note_spec(grantee, database)
        return known

    def keep_only(self, grantees: Iterable[Grantee]) -> None:
        """Roles that are no longer published are forgotten."""
        some = tuple(grantees)
        if some == self._kept:
            return
        self._kept, self._index, self._weight = some, None, None
        self._resting = frozenset(one.key for one in some if one.rests)
        kept, roles = {one.key for one in some}, {one.oid for one in some}
        self._roles = {key: one for key, one in self._roles.items() if key in kept}
        for oid in self.applied.keys() - roles:
            del self.applied[oid]
        self._terms = {key: one for key, one in self._terms.items() if key in kept}
        if len(self._equal) > len(self._terms):
            self._equal = {terms: terms for _, terms in self._terms.values()}

    def reach(self, grantees: Sequence[Grantee], database: str) -> PrivilegeReach:
        """What of the database these roles' declarations can concern."""
        some = tuple(grantees)
        if self._reach is None or self._reach[0] != some:
            self._reach = some, PrivilegeReach.of(database, some)
        return self._reach[1]

    def concerned(self, observed: ObservedDatabase) -> set[Key]:
        """The roles that may hold something on an object that was read, or declare something for it."""
        if self._index is None:
            self._index = GranteeIndex(observed.facts, self._kept)
        return self._index.concerned(observed)

    def terms(self, grantee: Grantee, database: str) -> PrivilegeTerms:
        """The same for all roles with equal ones."""
        known = self._terms.get(grantee.key)
        if known is None or known[0] is not grantee:
            terms = PrivilegeTerms.of(grantee, database)
            known = self._terms[grantee.key] = grantee, self._equal.setdefault(terms, terms)
        return known[1]

    def weigh(self, database: str) -> int:
        """Returns the sum of the weights of all roles' terms."""
        if self._weight is None:
            self._weight = sum(self.terms(one, database).weight for one in self._kept)
        return self._weight

    def contested(self) -> frozenset[Key]:
        """Returns the roles of which some drift recurs."""
        return frozenset(key for key, one in self._drifted() if one.is_contested)

    def is_applied(self, grantee: Grantee, database: str) -> bool:
        """Whether the role's declaration is applied, as far as this process knows, and what is new to it is known."""
        known = self._roles.get(grantee.key)
        if known is None or known.uid != grantee.uid or not known.is_declared_by(grantee, database):
            return False
        return known.failure is None and (known.missed is not None or grantee.key in self._resting)

    def needing_complete_read(self) -> frozenset[Key]:
        """Returns the roles for which a partial read does not suffice."""
        return frozenset(
            key for key, one in self._roles.items() if one.reported or one.failure is not None or one.is_contested
        )

    def waiting(self) -> frozenset[Key]:
        """Returns the roles for which something is pending. They need a complete read only after a change that can end
        it, so that a declaration that never completes cannot make every change expensive.
        """
        return frozenset(key for key, one in self._roles.items() if one.pending)

    def waiting_for(self, roles: Collection[str] | None) -> frozenset[Key]:
        """Returns those that may wait for one of these roles to be created; None: for any role."""
        absent = self.absent_creators
        found = absent if roles is None else absent.intersection(roles)
        return self.waiting() if found else frozenset()

    def note_creators(self, declared: Collection[str], existing: Collection[str], *, whole: bool) -> None:
        """`declared`: roles that declarations name, `whole`: all of them."""
        absent = frozenset(declared) - frozenset(existing)
        self.absent_creators = absent if whole else (self.absent_creators - frozenset(existing)) | absent

    def begin_reading(self) -> int:
        """A complete read begins: what small rounds note from now on is newer than what it returns. Returns the number
        of the last read before it.
        """
        self._meanwhile, self._columns_meanwhile = {}, frozenset()
        return self._reads

    def end_reading(self) -> None:
        """The large round is over."""
        self._meanwhile, self._columns_meanwhile = None, frozenset()

    def select_new(self, read: frozenset[ObjectId]) -> frozenset[ObjectId]:
        """Returns those of these objects on which not every role has been granted what it needs yet."""
        return read & self._new.keys()

    def note_objects(self, observed: ObservedDatabase, *, complete: bool) -> NewObjects:
        """Returns the objects that did not exist, or were not identified as now, at the last complete read; unknown if
        there was none.

        `complete`: every object that any role reaches was read.
        """
        self.largest_acl = observed.largest_acl if observed.complete else self.largest_acl
        found = {one.object.id: _identify(one.object) for one in observed.acls}
        if self._meanwhile is not None and observed.complete:
            found |= self._meanwhile
        elif self._meanwhile is not None:
            self._meanwhile |= found
        self._reads += 1
        if self._known is None:
            self._known, self._size = found if complete else None, len(found)
            return NewObjects(None, self._reads)
        differing = [oid for oid, name in found.items() if self._known.get(oid) != name]
        self._note_replaced(frozenset(differing), observed)
        self._new |= dict.fromkeys(differing, self._reads)
        self._replaced |= not complete and any(oid in self._known for oid in differing)
        if complete:
            self._known = found
            self._new = {oid: read for oid, read in self._new.items() if oid in found}
        else:
            self._known.update(found)
        if observed.complete:
            self._size = len(self._known)
        self._forget_before()
        new = NewObjects(self._new, self._reads, self._before)
        for key in self._resting:
            role = self._roles.get(key)
            if role is not None and role.missed is not None:
                role.missed = frozenset((role.missed | new.later_than(role.granted_in_read)) & self._known.keys())
        return new

    def _note_replaced(self, differing: Collection[ObjectId], observed: ObservedDatabase) -> None:
        """Notes how these objects were. Of one that is new to some role already, it is not known what each role held
        when.
        """
        known = self._known or {}
        for one in observed.acls if differing else ():
            oid = one.object.id
            if oid in differing and oid in known:
                self._before[oid] = None if oid in self._new else _with_identity(one.object, known[oid])

    def _forget_before(self) -> None:
        self._before = {oid: before for oid, before in self._before.items() if oid in self._new}

    def take_replaced(self) -> bool:
        """Whether a read of some objects since the last call found a known one with another name, schema or owner: a
        declaration that names it may wait for it now.
        """
        replaced, self._replaced = self._replaced, False
        return replaced

    @property
    def is_full(self) -> bool:
        """Whether a complete read is due, which forgets the objects that were dropped."""
        return self._known is not None and len(self._known) > self._size + MOST_NOTED

    def note_columns(self, observed: ObservedDatabase, *, complete: bool) -> None:
        """`complete`: as in `note_objects`."""
        found = frozenset(one.oid for one in observed.columns)
        self.with_columns = found | self._columns_meanwhile if complete else self.with_columns | found
        self._columns_meanwhile |= found

    def begin_noting(self, key: Key, missed: frozenset[ObjectId], number: int) -> None:
        """Call it after the role's first complete read. `number`: of that read. `missed`: objects that may have
        appeared since the role's declaration was applied.
        """
        if key not in self._resting:
            role = self._roles[key]
            role.missed, role.granted_in_read = missed, number

    def note_granted(
        self,
        key: Key,
        read: frozenset[ObjectId] | None,
        unfinished: frozenset[ObjectId] | None,
        now: Moment,
        number: int,
    ) -> None:
        """The round granted the role what it needs on the objects that it read, except on `unfinished` (None: on all).
        `read`: None if these are all that the role reaches. `now`: when the round began. `number`: of its last read for
        this role.
        """
        role = self._roles[key]
        for name, contest in role.contests.items():
            role.contests[name] = postpone(contest, now)
        unfinished = read if unfinished is None else unfinished
        if role.missed is not None and unfinished is not None and key not in self._resting:
            unread = frozenset[ObjectId]() if read is None else role.missed - read
            new, last = self._new, role.granted_in_read
            left = {one for one in unfinished if one in role.missed or new.get(one, last) > last}
            role.missed = unread | left
            if read is None:
                role.granted_in_read = max(last, number)

    def note_unchanged(
        self, considered: Iterable[Grantee], chosen: Iterable[Grantee], observed: ObservedDatabase
    ) -> None:
        """On the objects of this read, the roles that were considered and not chosen have what they declare: there,
        nothing is new to them any more.
        """
        missing = {key for key, role in self._roles.items() if role.missed} - self._resting
        if not missing:
            return
        read = frozenset(one.object.id for one in observed.acls)
        for key in missing & {one.key for one in considered} - {one.key for one in chosen}:
            role = self._roles[key]
            role.missed = role.missed and role.missed - read

    def end_round(self, read: frozenset[ObjectId] | None) -> None:
        """A round ends that considered every role: on the objects that it read, nothing is new any more, except what a
        role misses. `read`: None if a complete read of the round served each role.
        """
        if read is None:
            known = (role for key, role in self._roles.items() if key not in self._resting and role.missed is not None)
            oldest = min((role.granted_in_read for role in known), default=self._reads)
            self._new = {oid: number for oid, number in self._new.items() if number > oldest}
        else:
            self._new = {oid: number for oid, number in self._new.items() if oid not in read}
        self._forget_before()

    def add_missed(self, keys: Iterable[Key], objects: Collection[ObjectId]) -> None:
        """These roles took no part in rounds that noted these objects as new."""
        for key in keys:
            role = self._roles.get(key)
            if role is not None and role.missed is not None:
                role.missed |= objects & self._known.keys() if self._known else frozenset()

    def next_check(self) -> float:
        """When a contested role, or a read that was put off, is due, on the loop's clock."""
        contested = min((due for _, one in self._drifted() for due in one.next_checks), default=math.inf)
        return min(contested, self.further.next, self.adoptees.next, self.drifts.record_at)

    def due(self, now: float) -> frozenset[Key]:
        contested = frozenset(key for key, one in self._drifted() if any(due <= now for due in one.next_checks))
        return contested | self.further.due(now) | self.adoptees.due(now)

    def _drifted(self) -> list[tuple[Key, RoleMemory]]:
        """Returns the roles that can be contested: few of those that each event looks at."""
        return [(key, one) for key, one in self._roles.items() if one.contests]


def _identify(obj: DatabaseObject) -> ObjectIdentity:
    """Whoever owned an object held everything on it. Policy may have denied what it allows with another owner, or on a
    routine that is no longer SECURITY DEFINER; and patterns match what no longer belongs to an extension.
    """
    return obj.schema, obj.name, obj.arguments, obj.owner, obj.elevated, obj.extension


def _with_identity(obj: DatabaseObject, identity: ObjectIdentity) -> DatabaseObject:
    """Returns the object as it was."""
    schema, name, arguments, owner, elevated, extension = identity
    return replace(
        obj, schema=schema, name=name, arguments=arguments, owner=owner, elevated=elevated, extension=extension
    )
