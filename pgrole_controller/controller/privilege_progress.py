"""What is known of one role during a round in one database, and how its drift is summarized, stored and restored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pgrole_controller.controller.privilege_memory import AppliedState, RoleMemory
from pgrole_controller.core.acl import AclChange, DefaultAclChange, ObjectId, ObservedAcl
from pgrole_controller.core.acl_decision import PrivilegeDecision
from pgrole_controller.core.approval import Approval
from pgrole_controller.core.attribution import GRANTED, REVOKED, ChangedRow
from pgrole_controller.core.contest import describe_field
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.grantee import Grantee
from pgrole_controller.core.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privilege_result import Culprit, Evidence, PrivilegeDrift, PrivilegeNews

_LONGEST_STATEMENT = 1000

#: Maximum number of culprits told apart in one round; the last one stands for the rest.
_MOST_CULPRITS = 10

#: What one culprit did: the drift to report, its differences, and the culprit with everything known.
CulpritDrift = tuple[PrivilegeDrift, tuple[PrivilegeDifference, ...], Culprit]


@dataclass(slots=True)
class PrivilegeProgress:
    """One role during a round. `changes`: without those held back. `told`: drift that the changes correct. `approval`:
    the
    one that the changes act on.
    """

    grantee: Grantee
    role: RoleMemory
    applied: AppliedState = field(default_factory=AppliedState)
    decision: PrivilegeDecision = field(default_factory=PrivilegeDecision)
    changes: tuple[AclChange, ...] = ()
    default_changes: tuple[DefaultAclChange, ...] = ()
    told: tuple[CulpritDrift, ...] = ()
    error: PgRoleError | None = None
    held: frozenset[str] = frozenset()
    held_objects: frozenset[ObjectId | None] = frozenset()
    touched: bool = False
    news: list[PrivilegeNews] = field(default_factory=list)
    approval: Approval | None = None

    @property
    def needs_storing(self) -> bool:
        return self.applied.digest != self.role.digest and not (self.held or self.grantee.suspended or self.error)

    @property
    def drift(self) -> list[PrivilegeDifference]:
        """The drift that is repaired now."""
        left = frozenset(self.decision.reported)
        return [one for one in self.decision.drift if one not in left and object_of(one) not in self.held_objects]

    @property
    def has_changes(self) -> bool:
        return bool(self.changes or self.default_changes)


def sum_up(commands: Sequence[Culprit]) -> Culprit:
    """Summarizes what one culprit did, with all its statements and the time of the first."""
    times = [one.time for one in commands if one.time is not None]
    statements = "; ".join(dict.fromkeys(one.statement for one in commands if one.statement))
    return replace(commands[0], time=min(times, default=None), statement=statements[:_LONGEST_STATEMENT])


def object_of(difference: PrivilegeDifference) -> ObjectId | None:
    return None if difference.object is None else difference.object.id


def changed_row(
    difference: PrivilegeDifference, acls: Mapping[ObjectId, ObservedAcl], role_name: str
) -> ChangedRow | None:
    """Returns the row that shows who changed this privilege; None if unknown, e.g. for default privileges."""
    if difference.object is None:
        return None
    found = acls.get(difference.object.id)
    if found is None or not found.xmin:
        return None
    tags = GRANTED if difference.held else REVOKED
    return ChangedRow(found.xmin[0], tags, (difference.object.name, role_name), difference.object.id.oid)


def restore_drift(stored: Mapping[str, object] | None) -> PrivilegeDrift | None:
    """Restores the drift that `shorten_drift` stored; None if there is none, or if another version stored it."""
    match stored:
        case {"time": str(time), "words": [*words], "count": int(count), "login": str(login), "proof": str(proof)}:
            try:
                at = datetime.fromisoformat(time)
                by = Culprit(Evidence(proof), login, time=at)
            except ValueError:
                return None
            return PrivilegeDrift(at, tuple(map(str, words)), count, corrected=True, by=by)
    return None


def shorten_drift(drift: PrivilegeDrift) -> dict[str, object]:
    return {
        "time": drift.time.isoformat(),
        "words": [words[:120] for words in drift.words[:5]],
        "count": drift.count,
        "login": drift.by.login,
        "proof": drift.by.proof.value,
    }


def group_by_culprit(
    drift: Iterable[PrivilegeDifference],
    rows: Mapping[PrivilegeDifference, ChangedRow | None],
    culprits: Mapping[ChangedRow, Culprit],
) -> list[tuple[Culprit, tuple[PrivilegeDifference, ...]]]:
    """Groups differences by culprit; beyond a limit, the last culprit stands for the rest."""
    grouped: dict[Culprit, list[PrivilegeDifference]] = {}
    commands: dict[Culprit, list[Culprit]] = {}
    for difference in drift:
        row = rows[difference]
        by = culprits.get(row, Culprit()) if row is not None else Culprit()
        who = replace(by, time=None, statement="")
        if who not in grouped and len(grouped) >= _MOST_CULPRITS:
            who = next(reversed(grouped))
        grouped.setdefault(who, []).append(difference)
        commands.setdefault(who, []).append(by)
    return [(sum_up(commands[who]), tuple(differences)) for who, differences in grouped.items()]


def find_error(one: PrivilegeProgress, database: str) -> PgRoleError | None:
    """Returns why the role's privileges are not as declared: a contest, a failure, or what is pending."""
    for name in sorted(one.held):
        where = f'privileges in database "{database}"'
        told = describe_field(f'{where}, granted by "{name}"' if name else f"default {where}", one.role.contests[name])
        return Transient(Reason.CONTESTED, told)
    if one.error is not None:
        return one.error
    refused = [error for error in one.role.pending if isinstance(error, Refused)]
    return next(iter([*refused, *one.role.pending]), None)
