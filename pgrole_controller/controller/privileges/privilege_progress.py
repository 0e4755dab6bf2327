"""What is known of one role during a round in one database, and how it is summarized."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import NamedTuple

from pgrole_controller.controller.privileges.role_memory import MOST_NOTED_AUTHORS, AppliedState, RoleMemory
from pgrole_controller.core.approval import Approval
from pgrole_controller.core.contest import describe_field
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.names import join_messages
from pgrole_controller.core.privileges.acl import AclChange, DatabaseObject, DefaultAclChange, ObjectId
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision
from pgrole_controller.core.privileges.awaited_privileges import AppliedDeclaration
from pgrole_controller.core.privileges.default_acl_decision import label_place
from pgrole_controller.core.privileges.granted_privileges import LONGEST_OF_DATABASE
from pgrole_controller.core.privileges.grantee import Grantee, find_outdated
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference, mark_refused
from pgrole_controller.core.privileges.privilege_result import (
    DriftAuthor,
    PrivilegeDrift,
    PrivilegeNews,
    PrivilegeResult,
)
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.acl_refusal import OutdatedAcl, Postponed
from pgrole_controller.postgres.privileges.acl_repair import part_of
from pgrole_controller.postgres.privileges.acl_transaction import AppliedAcls
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope

#: The object, None for default privileges, and the role in whose name they are granted there.
Place = tuple[ObjectId | None, str]


class AuthorDrift(NamedTuple):
    """What one author did: the drift as it is reported, and the author with everything that is known."""

    drift: PrivilegeDrift
    differences: tuple[PrivilegeDifference, ...]
    by: DriftAuthor


@dataclass(slots=True)
class PrivilegeProgress:
    """One role during a round. `changes`: without those that are held back. `to_correct`: drift that the changes
    correct. `newly_reported`: what the decision leaves as it is, and was not announced yet. `reported`: that by author.
    `corrected`: drift that was corrected in this round. `approval`: which the changes are made for. `decided`: the
    number of the read that it was last decided about. `refused`: marks of what PostgreSQL refused since then, drift
    excepted; None: nothing failed, or some for a reason that may pass by itself. `touched`: a partial read suffices to
    report something. `undecided`: the last decision raised, so that nothing is known of the objects that were read.
    """

    grantee: Grantee
    role: RoleMemory
    applied: AppliedState = field(default_factory=AppliedState)
    decision: PrivilegeDecision = field(default_factory=PrivilegeDecision)
    changes: tuple[AclChange, ...] = ()
    default_changes: tuple[DefaultAclChange, ...] = ()
    to_correct: tuple[AuthorDrift, ...] = ()
    newly_reported: tuple[PrivilegeDifference, ...] = ()
    reported: tuple[tuple[DriftAuthor, tuple[PrivilegeDifference, ...]], ...] = ()
    corrected: list[PrivilegeDrift] = field(default_factory=list)
    error: PgRoleError | None = None
    held: frozenset[str] = frozenset()
    touched: bool = False
    undecided: bool = False
    news: list[PrivilegeNews] = field(default_factory=list)
    approval: Approval | None = None
    decided: int = 0
    refused: frozenset[str] | None = None

    def note_reported(self) -> None:
        """Notes what of the reported drift is new. All of it is put into words, which takes long if it is much."""
        announced = self.role.announced or ()
        self.newly_reported = tuple(one for one in self.decision.reported if one.words not in announced)

    def hold_back(self, grantors: frozenset[str]) -> None:
        """Leaves out what would undo drift of these grantors. What is missing on new objects is still granted."""
        decision = self.decision
        some = decision.extended if grantors else ()
        extended = {(one.object or one.default_label, one.privilege, one.column) for one in some}
        self.held = grantors
        held_places = frozenset(place_of(each) for each in decision.drift if each.granted_by in grantors)
        self.changes = tuple(
            each
            for each in decision.changes
            if place_of_change(each) not in held_places or _only_extends(each, each.object, extended)
        )
        self.default_changes = tuple(
            each
            for each in decision.default_changes
            if (None, each.creator_name) not in held_places or _only_extends(each, label_place(each.place), extended)
        )
        self.touched = self.touched or self.has_changes or bool(grantors)

    def note_revoked(self, left_over: Iterable[PrivilegeDifference]) -> None:
        """`left_over`: what of the decision's was revoked."""
        objects = {one.object.id for one in left_over if one.object is not None}
        if objects and self.has_changes:
            self.role.note_revoked(objects, self.decided)

    @property
    def needs_storing(self) -> bool:
        stale = self.applied.stale and bool(self.decision.applied) and self._is_storable
        return stale or self.declaration != self.applied.declaration

    @property
    def is_applied(self) -> bool:
        """Whether there is nothing left to do for it."""
        return self.error is None and not (self.has_changes or self.needs_storing)

    @property
    def declaration(self) -> str:
        """What to store as applied with the changes. What waits to be applied may be among what is held back. What
        PostgreSQL refuses waits, too: else one object would keep later changes by others from counting as drift.
        """
        if not (self.decision.applied and self._is_storable):
            return self.applied.declaration
        if self.held:
            return self.decision.kept
        if not self.refused:
            return self.decision.applied
        return AppliedDeclaration.parse(self.decision.applied).add(self.refused).text

    @property
    def _is_storable(self) -> bool:
        return self.error is None or self.refused is not None

    @property
    def drift(self) -> list[PrivilegeDifference]:
        """What is repaired now."""
        left = set(self.decision.reported)
        return [one for one in self.decision.drift if one.granted_by not in self.held and one not in left]

    @property
    def unattributed(self) -> list[PrivilegeDifference]:
        """Drift that is held back, or to be reported, and whose author is not noted yet."""
        if not (self.held or self.decision.reported):
            return []
        held = (one for one in self.decision.drift if one.granted_by in self.held)
        some = dict.fromkeys((*held, *self.newly_reported))
        return list(islice((one for one in some if one not in self.role.noted), MOST_NOTED_AUTHORS))

    @property
    def has_changes(self) -> bool:
        return bool(self.changes or self.default_changes)


def is_verified(some: Iterable[PrivilegeProgress]) -> bool:
    """Whether the transactions that changed these roles' privileges read all of them back."""
    return not any(one.error is not None or one.default_changes for one in some)


def where_changed(some: Iterable[PrivilegeProgress]) -> PrivilegeRead:
    """What to read to see whether the changes of these roles were made."""
    changed = list(some)
    objects = frozenset(change.object.id for one in changed for change in one.changes)
    return PrivilegeRead(Scope.NAMED, objects=objects, defaults=any(one.default_changes for one in changed))


def report_unfinished(some: Iterable[PrivilegeProgress], database: str) -> None:
    for one in some:
        if one.has_changes and one.error is None:
            one.error = Transient(
                Reason.PROGRESSING, f'privileges in database "{database}" keep changing while they are applied'
            )


def find_outdated_roles(some: Iterable[PrivilegeProgress], published: Mapping[Key, Grantee]) -> frozenset[int]:
    """Returns the oids of the roles whose object or policy has changed since they were read."""
    return frozenset(one.oid for one in find_outdated((one.grantee for one in some), published))


def note_failures(one: PrivilegeProgress, applied: AppliedAcls) -> None:
    """Notes why not everything was changed that should be. What was not tried, and what reading again helps against,
    is told last.
    """
    failures = _find_failures(one, applied)
    if failures:
        one.error = min((error for _, error in failures), key=lambda error: isinstance(error, OutdatedAcl | Postponed))
        one.refused = _find_refused(one, failures)


def _find_failures(
    one: PrivilegeProgress, applied: AppliedAcls
) -> list[tuple[AclChange | DefaultAclChange, PgRoleError]]:
    """Returns the changes that were not made, each with its error."""
    changes: list[AclChange | DefaultAclChange] = [*one.changes, *one.default_changes]
    found = ((change, _find_error(change, applied)) for change in changes)
    return [(change, error) for change, error in found if error is not None]


def _find_refused(
    one: PrivilegeProgress, failures: Iterable[tuple[AclChange | DefaultAclChange, PgRoleError]]
) -> frozenset[str] | None:
    """Returns `PrivilegeProgress.refused` after these failures."""
    drift, refused = set(one.decision.drift), list[PrivilegeDifference]()
    for change, error in failures:
        if error.reason is not Reason.DATABASE_ERROR:
            return None
        refused += (each for each in _differences_of(change) if each not in drift)
    return mark_refused(refused)


def _find_error(change: AclChange | DefaultAclChange, applied: AppliedAcls) -> PgRoleError | None:
    if isinstance(change, DefaultAclChange):
        return applied.default_errors.get(change)
    grantee, delegated = part_of(change)
    return applied.find_error(change.object.id, grantee, (delegated,))


def _differences_of(change: AclChange | DefaultAclChange) -> Iterator[PrivilegeDifference]:
    """Yields what the change corrects, as the decision noted it."""
    held, option = change.revoke, change.option_only
    if isinstance(change, DefaultAclChange):
        label, by = label_place(change.place), change.creator_name
        for privilege in change.privileges:
            yield PrivilegeDifference(privilege, held=held, grantor_name=by, option=option, default_label=label)
        return
    by = place_of_change(change)[1] if held else ""
    for privilege, column in product(change.privileges, change.columns or ("",)):
        yield PrivilegeDifference(privilege, change.object, column, held=held, grantor_name=by, option=option)


def select_done(
    differences: Iterable[PrivilegeDifference], grantee: int, applied: AppliedAcls
) -> tuple[PrivilegeDifference, ...]:
    """Returns the differences that were corrected. `grantee`: oid of the role."""
    failed = frozenset(
        (label_place(one.place), privilege)
        for one in applied.default_errors
        if one.grantee == grantee
        for privilege in one.privileges
    )

    def is_done(difference: PrivilegeDifference) -> bool:
        if difference.object is None:
            return (difference.default_label, difference.privilege) not in failed
        delegated = difference.held and difference.granted_by != difference.object.owner_name
        return applied.find_error(difference.object.id, grantee, (delegated,)) is None

    return tuple(filter(is_done, differences))


def place_of(difference: PrivilegeDifference) -> Place:
    return None if difference.object is None else difference.object.id, difference.granted_by


def place_of_change(change: AclChange) -> Place:
    return change.object.id, change.grantor or change.object.owner_name


def _only_extends(
    change: AclChange | DefaultAclChange, where: DatabaseObject | str, extended: Container[tuple[object, str, str]]
) -> bool:
    """Whether the change grants nothing but these. `where`: the object, or PrivilegeDifference.default_label."""
    columns = change.columns if isinstance(change, AclChange) else ()
    each = product((where,), change.privileges, columns or ("",))
    return not change.revoke and all(one in extended for one in each)


def _find_obstacle(one: PrivilegeProgress, database: str) -> PgRoleError | None:
    """Returns what kept the role from being repaired: a contest, or a failure."""
    for name in sorted(one.held):
        where = f'privileges in database "{database}"'
        told = describe_field(f'{where}, granted by "{name}"', one.role.contests[name])
        return Transient(Reason.CONTESTED, told)
    return one.error


def _combine_pending(pending: Iterable[PgRoleError], where: str) -> PgRoleError | None:
    """Returns one error that names all of these. What someone has to change comes first, and gives the reason. `where`:
    how the messages begin, which is said once.
    """
    some = sorted(pending, key=lambda error: not isinstance(error, Refused))
    if len(some) < 2:
        return next(iter(some), None)
    first, *others = some
    messages = (first.message, *(error.message.removeprefix(where) for error in others))
    return first.reword(join_messages(messages, LONGEST_OF_DATABASE))


def build_result(one: PrivilegeProgress, database: str, *, complete: bool, last: int) -> PrivilegeResult:
    """Returns what to report about the role, and notes its failure. Unless the read was `complete`, an earlier one is
    not over, and neither is an obstacle that a small round met since that read began. `last`: number of the last read
    before it. What is pending belongs to the present declaration, and keeps no former one in the claim.
    """
    role, obstacle = one.role, _find_obstacle(one, database)
    met, number = role.obstacle
    newer = met if complete and obstacle is None and number > last else None
    if obstacle is not None:
        role.obstacle = obstacle, one.decided
    if newer is None and (complete or one.error is not None):
        role.failure = one.error
    pending = _combine_pending(role.pending, f'spec.privileges: database "{database}": ')
    error = newer or obstacle or pending or role.failure
    return PrivilegeResult(
        one.grantee.key,
        one.grantee.uid,
        database,
        role.digest,
        error,
        confirmed=role.confirmed and role.failure is None and obstacle is None and newer is None,
        drift_count=one.applied.drift_count,
        last_drifts=role.last_drifts,
        reported=role.reported,
        declarable=role.declarable,
        news=tuple(one.news),
        offer=role.offer,
        approve_handled=one.applied.approve_handled,
        unfit=role.offer is not None and one.grantee.approval.is_open(one.applied.approve_handled),
    )
