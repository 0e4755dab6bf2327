"""Compares one role's privileges, object by object, with what it declares."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from pgrole_controller.core.privileges.acl import (
    DECLARABLE,
    TEMPORARY_SCHEMAS,
    AclChange,
    AclEntry,
    DatabaseObject,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.awaited_privileges import PendingNames
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.object_patterns import (
    NOTHING_WANTED,
    CompiledPrivileges,
    Wanted,
    compile_privileges,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import DifferenceClassifier, PrivilegeDifference
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts, Denial, traits_of, why_not_granted


@dataclass(frozen=True, slots=True)
class _Denied:
    """What of a Wanted the policy denies."""

    privileges: frozenset[str] = frozenset()
    columns: frozenset[tuple[str, str]] = frozenset()

    def has(self, privilege: str, column: str = "") -> bool:
        return (privilege, column) in self.columns if column else privilege in self.privileges


_NOTHING_DENIED = _Denied()


@dataclass(frozen=True, slots=True)
class _Kept:
    """Pairs of privilege and column. `held`: still held after the revokes. `lost`: declared or left alone, but a revoke
    on the whole table takes it along. `again`: those of `lost` that the controller can grant again as they were.
    """

    held: frozenset[tuple[str, str]] = frozenset()
    lost: frozenset[tuple[str, str]] = frozenset()
    again: frozenset[tuple[str, str]] = frozenset()


_NOTHING_KEPT = _Kept()


#: On an object, or on a column.
DeniedPrivilege: TypeAlias = tuple[ObjectId, str, str]


@dataclass(frozen=True, slots=True)
class RememberedObjects:
    """What is remembered of objects on which the role's declaration was applied. `before`: those that had another name,
    schema or owner then, as they were. `changed`: these, and others that may have been different. `denied`: what the
    role held since then although policy denied it; None: not known.
    """

    before: Mapping[ObjectId, DatabaseObject] = field(default_factory=dict)
    changed: Set[ObjectId] = frozenset()
    denied: Set[DeniedPrivilege] | None = None


_NOTHING_REMEMBERED = RememberedObjects()


class AclComparison:
    """One grantee's privileges, object by object."""

    def __init__(
        self,
        grantee: Grantee,
        observed: ObservedDatabase,
        declaration: CompiledPrivileges | None,
        classifier: DifferenceClassifier,
        pending: PendingNames,
        remembered: RememberedObjects = _NOTHING_REMEMBERED,
    ) -> None:
        facts = observed.facts
        self._grantee = grantee
        self._observed = observed
        self._declaration = declaration
        self._former = [compile_privileges(one, facts.version) for one in grantee.former.get(facts.database, ())]
        self._classifier = classifier
        self._pending = pending
        self._remembered = remembered
        self._verdicts: dict[tuple[object, ...], frozenset[str]] = {}
        self.changes: list[AclChange] = []
        self.former_held = False
        self.denied = set[DeniedPrivilege]()  # as in RememberedObjects, from now on

    def compare(self, acl: ObservedAcl) -> None:
        obj = acl.object
        if obj.owner == self._grantee.oid or (
            obj.kind is ObjectKind.DATABASE and obj.name != self._observed.facts.database
        ):
            return
        entries, plain = self._observed.entries_of(acl, self._grantee.oid)
        wanted = NOTHING_WANTED if self._declaration is None else self._declaration.wanted(obj)
        if not entries and not wanted.privileges and not wanted.columns:
            return
        denied = _NOTHING_DENIED if wanted is NOTHING_WANTED else self._denied(obj, wanted)
        if plain == wanted.privileges and not wanted.columns and denied is _NOTHING_DENIED:
            return
        kept = self._compare_held(obj, entries, wanted, denied) if entries else _NOTHING_KEPT
        self._compare_missing(obj, kept, wanted, denied)

    def find_exact(self, obj: DatabaseObject) -> frozenset[str] | None:
        """Returns the privileges with which `compare` finds nothing to do, if a role with equal terms holds exactly
        these, without grant options. None: only `compare` can tell.
        """
        wanted = NOTHING_WANTED if self._declaration is None else self._declaration.wanted(obj)
        # Whether CREATE on a schema is allowed depends on the role's name.
        if wanted.columns or (obj.kind is ObjectKind.SCHEMA and "CREATE" in wanted.privileges):
            return None
        return wanted.privileges if self._denied(obj, wanted) is _NOTHING_DENIED else None

    def _denied(self, obj: DatabaseObject, wanted: Wanted) -> _Denied:
        kind = (*traits_of(obj), wanted.privileges, wanted.literal)
        privileges = self._verdicts.get(kind)
        if privileges is None:
            found = (one for one in wanted.privileges if self._why_not(obj, one, wanted) is not None)
            privileges = self._verdicts[kind] = frozenset(found)
        if not privileges and not wanted.columns:
            return _NOTHING_DENIED
        columns = {
            (privilege, column)
            for privilege, some in wanted.columns.items()
            for column in some
            if self._why_not(obj, privilege, wanted, column) is not None
        }
        if not privileges and not columns:
            return _NOTHING_DENIED
        for privilege, column in (*((one, "") for one in sorted(privileges)), *sorted(columns)):
            denial = self._why_not(obj, privilege, wanted, column)
            if denial is not None:
                literal = wanted.has_literal(privilege, column)
                self._pending.add_denied_on(obj, privilege, denial, literal=literal)
        return _Denied(privileges, frozenset(columns))

    def _why_not(self, obj: DatabaseObject, privilege: str, wanted: Wanted, column: str = "") -> Denial | None:
        literal = wanted.has_literal(privilege, column)
        return why_not_granted(self._grantee, obj, privilege, self._observed.facts, column=column, literal=literal)

    def _compare_held(self, obj: DatabaseObject, entries: Sequence[AclEntry], wanted: Wanted, denied: _Denied) -> _Kept:
        """Decides about the entries that exist. What policy denies stays if the role held it when the declaration was
        applied, but its grant option is never declared.
        """
        kept: list[AclEntry] = []
        revoked: list[AclEntry] = []
        disarmed: list[AclEntry] = []
        for entry in entries:
            if not wanted.has(entry.privilege, entry.column):
                (revoked if self._is_revoked(obj, entry) else kept).append(entry)
                continue
            if denied.has(entry.privilege, entry.column) and self._is_given(obj, entry, wanted):
                (revoked if self._classifier.note_held(_difference(obj, entry)) else kept).append(entry)
                continue
            kept.append(entry)
            undeclared = entry.grantable and self._is_exact(obj)
            if undeclared and self._classifier.note_held(_difference(obj, entry, option=True)):
                disarmed.append(entry)
        if not revoked and not disarmed:
            return _Kept(frozenset((entry.privilege, entry.column) for entry in kept))
        # PostgreSQL revokes the columns' privileges of the same grantor with those of the table.
        whole = {(entry.grantor, entry.privilege) for entry in revoked if not entry.column}
        staying = [entry for entry in kept if not entry.column or (entry.grantor, entry.privilege) not in whole]
        self._revoke(obj, _without_implied(revoked, whole), option_only=False)
        whole |= {(entry.grantor, entry.privilege) for entry in disarmed if not entry.column}
        self._revoke(obj, _without_implied(disarmed, whole), option_only=True)
        held = frozenset((entry.privilege, entry.column) for entry in staying)
        lost = frozenset((entry.privilege, entry.column) for entry in kept) - held
        # The controller grants in the owner's name, and no grant option.
        own = (entry for entry in kept if entry.grantor == obj.owner and (not entry.grantable or self._is_exact(obj)))
        return _Kept(held, lost, lost & {(entry.privilege, entry.column) for entry in own})

    def _is_revoked(self, obj: DatabaseObject, entry: AclEntry) -> bool:
        """Decides about an entry that is not declared, and notes it."""
        formerly = any(one.wanted(obj).has(entry.privilege, entry.column) for one in self._former)
        self.former_held = self.former_held or formerly
        if not formerly and not self._is_exact(obj):
            return False
        difference = _difference(obj, entry)
        if entry.privilege not in DECLARABLE.get(obj.kind, ()):
            self._classifier.note_left(difference)
            return False
        return self._classifier.note_held(difference, left_over=self._is_left_over(obj, entry))

    def _is_given(self, obj: DatabaseObject, entry: AclEntry, wanted: Wanted) -> bool:
        """Tells whether others granted what is declared, and what policy denied already: the controller never did."""
        held, known = (obj.id, entry.privilege, entry.column), self._remembered.denied
        literal = wanted.has_literal(entry.privilege, entry.column)
        same = obj.id not in self._remembered.changed
        is_given = known is not None and held not in known and same and self._is_exact(obj)
        if is_given and self._classifier.was_denied(_difference(obj, entry), literal=literal):
            return True
        self.denied.add(held)
        return False

    def _is_left_over(self, obj: DatabaseObject, entry: AclEntry) -> bool:
        """Tells whether the declaration wanted just this entry, and policy allowed it, before the object got another
        name, schema or owner. In an ACL, a new owner takes the place of the former one.
        """
        before = self._remembered.before.get(obj.id)
        if before is None or self._declaration is None or entry.grantable or entry.grantor != obj.owner:
            return False
        wanted = self._declaration.wanted(before)
        if before.owner == self._grantee.oid or not wanted.has(entry.privilege, entry.column):
            return False
        return self._why_not(before, entry.privilege, wanted, entry.column) is None

    def _is_exact(self, obj: DatabaseObject) -> bool:
        """Tells whether whatever is not declared on this object is undone."""
        left = is_left_alone(obj, self._observed.facts)
        if self._declaration is None or left or obj.schema.startswith(TEMPORARY_SCHEMAS):
            return False
        return not self._declaration.is_unmanaged(obj.schema)

    def _revoke(self, obj: DatabaseObject, entries: Iterable[AclEntry], *, option_only: bool) -> None:
        whole: dict[str, set[str]] = {}
        by_column: dict[tuple[str, str], set[str]] = {}
        for entry in entries:
            grantor = "" if entry.grantor == obj.owner else entry.grantor_name
            if entry.column:
                by_column.setdefault((grantor, entry.column), set()).add(entry.privilege)
            else:
                whole.setdefault(grantor, set()).add(entry.privilege)
        grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (grantor, column), privileges in sorted(by_column.items()):
            grouped.setdefault((grantor, tuple(sorted(privileges))), []).append(column)
        targets: list[tuple[str, tuple[str, ...], tuple[str, ...]]]
        targets = [(grantor, tuple(sorted(privileges)), ()) for grantor, privileges in sorted(whole.items())]
        targets += [(grantor, privileges, tuple(columns)) for (grantor, privileges), columns in grouped.items()]
        for grantor, some, columns in targets:
            change = self._change(obj, some, columns)
            self.changes.append(replace(change, revoke=True, grantor=grantor, option_only=option_only))

    def _compare_missing(self, obj: DatabaseObject, kept: _Kept, wanted: Wanted, denied: _Denied) -> None:
        begin = len(self.changes)
        missing = tuple(
            privilege
            for privilege in sorted(wanted.privileges - denied.privileges)
            if (privilege, "") not in kept.held
            and self._is_missing(PrivilegeDifference(privilege, obj, held=False), obj, wanted)
        )
        if missing:
            self.changes.append(self._change(obj, missing))
        if wanted.columns:
            self._compare_columns(obj, kept, wanted, denied)
        if kept.again:
            given = {place for change in self.changes[begin:] for place in product(change.privileges, change.columns)}
            self._grant_columns(obj, kept.again - given)

    def _compare_columns(self, obj: DatabaseObject, kept: _Kept, wanted: Wanted, denied: _Denied) -> None:
        granted = [
            (privilege, column)
            for privilege, columns in sorted(wanted.columns.items())
            if privilege not in wanted.privileges - denied.privileges
            for column in sorted(columns)
            if (privilege, column) not in kept.held
            and (privilege, column) not in denied.columns
            and self._is_granted(obj, privilege, column, kept, wanted)
        ]
        self._grant_columns(obj, granted)

    def _grant_columns(self, obj: DatabaseObject, granted: Iterable[tuple[str, str]]) -> None:
        columns: dict[str, list[str]] = {}
        for privilege, column in sorted(granted):
            columns.setdefault(privilege, []).append(column)
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for privilege, some in columns.items():
            by_columns.setdefault(tuple(some), []).append(privilege)
        self.changes += [self._change(obj, tuple(privileges), some) for some, privileges in by_columns.items()]

    def _is_granted(self, obj: DatabaseObject, privilege: str, column: str, kept: _Kept, wanted: Wanted) -> bool:
        """Decides about a declared column privilege that is not held, and notes it."""
        if (privilege, column) in kept.lost:
            return True
        existing = self._observed.columns.get(obj.id)
        if existing is None or column not in existing:
            if existing is None or wanted.has_literal(privilege, column):
                self._pending.add_column(obj, column)
            else:
                self._pending.add_possible_column(obj, column)
            return False
        return self._is_missing(PrivilegeDifference(privilege, obj, column, held=False), obj, wanted)

    def _is_missing(self, difference: PrivilegeDifference, obj: DatabaseObject, wanted: Wanted) -> bool:
        literal = wanted.has_literal(difference.privilege, difference.column)
        return self._classifier.note_missing(difference, obj.id, literal=literal)

    def _change(self, obj: DatabaseObject, privileges: tuple[str, ...], columns: tuple[str, ...] = ()) -> AclChange:
        return AclChange(obj, self._grantee.oid, self._grantee.role_name, privileges, columns=columns)


def is_left_alone(obj: DatabaseObject, facts: DatabaseFacts) -> bool:
    """Tells whether undeclared privileges on the object stay, since it belongs to an extension. The owner of an
    extension can add objects of its own to it, which are no reason.
    """
    return obj.extension and (obj.owner in facts.superusers or obj.owner in facts.own_roles)


def _without_implied(entries: Iterable[AclEntry], whole: Collection[tuple[int, str]]) -> list[AclEntry]:
    return [entry for entry in entries if not entry.column or (entry.grantor, entry.privilege) not in whole]


def _difference(obj: DatabaseObject, entry: AclEntry, *, option: bool = False) -> PrivilegeDifference:
    return PrivilegeDifference(entry.privilege, obj, entry.column, grantor_name=entry.grantor_name, option=option)
