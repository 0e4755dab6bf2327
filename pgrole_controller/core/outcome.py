"""How one look at an object ended, as it is said on the object, and when it is looked at again without being asked."""

from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.plan import Plan


class Ending(Enum):
    """The kinds of ending. They decide the conditions (kstatus) and the retry."""

    DONE = "done"  # Ready
    WORKING = "working"  # Reconciling: retried with back-off
    STALLED = "stalled"  # Stalled: it will not come right by itself
    PAUSED = "paused"  # neither


@dataclass(frozen=True, slots=True)
class Outcome:
    ending: Ending
    reason: Reason
    message: str

    @property
    def ready(self) -> bool:
        return self.ending is Ending.DONE

    @property
    def retried(self) -> bool:
        """Whether it is looked at again, with back-off, without being asked.

        What an object is refused for may lie in the database, where not everything that could end it is announced.
        What is contested has a time of its own.
        """
        if self.reason is Reason.CONTESTED:
            return False
        return self.ending is Ending.WORKING or (self.ending is Ending.STALLED and self.reason not in _OWN_FAULT)


#: What only a change of the object, or a restart of the controller, can end.
_OWN_FAULT = frozenset({Reason.INVALID_SPEC, Reason.SERVER_GONE})

RECONCILED = Outcome(Ending.DONE, Reason.RECONCILED, "the role matches the spec")
PROGRESSING = Outcome(
    Ending.WORKING, Reason.PROGRESSING, "the role changed again while the controller applied the spec"
)


def of_error(error: PgRoleError) -> Outcome:
    if error.reason is Reason.SUSPENDED:
        return Outcome(Ending.PAUSED, error.reason, error.message)
    ending = Ending.STALLED if isinstance(error, Refused) else Ending.WORKING
    return Outcome(ending, error.reason, error.message)


def of_contest(told: str, outcome: Outcome) -> Outcome:
    """The outcome of a look while a field is contested: it is not Ready before that ends. `told` says what goes on."""
    rest = "everything else matches the spec" if outcome.ready else outcome.message
    return Outcome(Ending.WORKING, Reason.CONTESTED, f"{told}. Apart from that: {rest}")


def of_read_back(plan: Plan) -> Outcome:
    """The outcome of the plan of a look: Ready only when there is nothing left to do."""
    if plan.reported and not plan.writes:
        fields = ", ".join(plan.reported)
        return Outcome(
            Ending.PAUSED,
            Reason.DRIFT_REPORTED,
            f"drift detected but not corrected, since spec.drift.policy is Report: {fields}",
        )
    if plan.writes:
        return PROGRESSING
    return of_error(plan.pending[0]) if plan.pending else RECONCILED
