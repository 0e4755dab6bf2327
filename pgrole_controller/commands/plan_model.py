"""What `plan` and `diff` found out: for each object what would happen, in words and as SQL. Contains no secret."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.request import Key


class PlannedAction(StrEnum):
    """What the controller would do about an object.

    - ADOPT: take over an existing role, and change what differs.
    - CLAIM: take over an existing role that is as declared. Only the claim is new, so this is nothing to do.
    - REPORT: nothing, since drift.policy is Report: something differs.
    - REVOKE: revoke what others granted to the role of an object that is refused.
    - REFUSE: nothing; a rule forbids it.
    - WAIT: nothing until something else exists.
    - FAIL: the object could not be evaluated.
    """

    CREATE = "create"
    CHANGE = "change"
    ADOPT = "adopt"
    CLAIM = "claim"
    DROP = "drop"
    REVOKE = "revoke"
    REPORT = "report"
    REFUSE = "refuse"
    WAIT = "wait"
    NOTHING = "nothing"
    FAIL = "fail"


#: Actions that leave roles and privileges as they are.
IDLE = frozenset({PlannedAction.NOTHING, PlannedAction.CLAIM})

#: Notes of objects that were not compared, or not completely.
SUSPENDED = "suspended: spec.suspend is true"
NOT_COMPARED = "password: not compared"


class Sign(StrEnum):
    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One difference. `field`: of spec. `database`: empty for the whole server. `corrected` False: only reported."""

    sign: Sign
    field: str
    words: str
    database: str = ""
    corrected: bool = True


@dataclass(frozen=True, slots=True)
class PlannedSql:
    """Statements without a closing semicolon, in order, in one database (empty: any, as they concern roles).

    `late`: they need roles that other objects of the plan create.
    """

    database: str
    statements: tuple[str, ...]
    late: bool = False


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """`key` None: a document that cannot be read. `place`: file and line; empty for an object in the cluster. `role`,
    `server`: empty if unknown.

    - `drift`: fields that differ from what was applied: someone else changed them.
    - `notes`: what was not compared, or happens in addition.
    - `refusals`: the rules that forbid what the object declares, or a part of it.
    - `waits`: what has to exist first. `errors`: what could not be evaluated.
    """

    key: Key | None
    place: str = ""
    role: str = ""
    server: str = ""
    action: PlannedAction = PlannedAction.NOTHING
    changes: tuple[PlannedChange, ...] = ()
    sql: tuple[PlannedSql, ...] = ()
    drift: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[PgRoleError, ...] = ()
    waits: tuple[PgRoleError, ...] = ()
    errors: tuple[PgRoleError, ...] = ()

    @property
    def name(self) -> str:
        return str(self.key) if self.key else self.place

    @property
    def failed(self) -> bool:
        return bool(self.errors)


def failed_object(
    key: Key | None, error: PgRoleError, *, place: str = "", role: str = "", server: str = ""
) -> PlannedObject:
    return PlannedObject(key, place, role, server, PlannedAction.FAIL, errors=(error,))


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Every object, in the order in which they were declared. `notes`: notes about several objects, each once."""

    objects: tuple[PlannedObject, ...]
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return any(one.action not in IDLE for one in self.objects)

    @property
    def failed(self) -> bool:
        return any(one.failed for one in self.objects)

    def count(self) -> dict[PlannedAction, int]:
        """Returns the number of objects of each action, in the order of the actions."""
        counted = Counter(one.action for one in self.objects)
        return {action: counted[action] for action in PlannedAction if counted[action]}


def join_reports(reports: Sequence[PlanReport]) -> PlanReport:
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    return PlanReport(tuple(one for report in reports for one in report.objects), tuple(notes))
