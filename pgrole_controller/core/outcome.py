"""The outcome of one reconcile: of the role, and of its privileges in databases. It decides conditions and retry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pgrole_controller.core.approval import UNFIT
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, RefusedForNow, WaitingForDatabases
from pgrole_controller.core.names import cut_middle, name_some, quote_some
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.privileges.granted_privileges import LONGEST_OF_DATABASE, GrantedPrivileges


class Phase(Enum):
    """Kinds of outcome. They decide the conditions (kstatus) and the retry."""

    DONE = "done"  # Ready
    WORKING = "working"  # Reconciling: retried with back-off
    STALLED = "stalled"  # Stalled: does not resolve by itself
    PAUSED = "paused"  # neither


@dataclass(frozen=True, slots=True)
class Outcome:
    """`by_databases`: it is about privileges, and the workers of the databases retry by themselves. `unanswered`: some
    have not answered yet. `for_now`: something other than the object may change so that it is accepted, or that more of
    it is applied.
    """

    phase: Phase
    reason: Reason
    message: str
    by_databases: bool = False
    unanswered: bool = False
    for_now: bool = False

    @property
    def ready(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def retried(self) -> bool:
        """Whether the object is retried with back-off.

        A refusal may depend on the database, where not every change that could end it is announced. A contested object
        has its own schedule, and so have the databases' workers.
        """
        if self.reason is Reason.CONTESTED or self.by_databases:
            return False
        depends = self.for_now or self.reason not in _OWN_FAULT
        return self.phase is Phase.WORKING or (self.phase is Phase.STALLED and depends)


#: These wait for a change of the object, its Secret, or its PgServer, which requests a reconcile.
_OWN_FAULT = frozenset({Reason.INVALID_SPEC, Reason.SERVER_GONE})

_PRECEDENCE = (Phase.STALLED, Phase.WORKING, Phase.PAUSED)

#: Maximum number of characters of a condition's message.
LONGEST_MESSAGE = 2048

#: Maximum number of databases whose messages stand there. The others are only named.
_MOST_DATABASES = 5

RECONCILED = Outcome(Phase.DONE, Reason.RECONCILED, "the role matches the spec")
CONNECTED = Outcome(Phase.DONE, Reason.RECONCILED, "connected, and detecting changes of its roles")  # of a PgServer
PROGRESSING = Outcome(Phase.WORKING, Reason.PROGRESSING, "the role changed again while the controller applied the spec")


def mention_privileges(message: str) -> str:
    """Returns the message of a role that matches, for one whose privileges do as well."""
    return message.replace("the role matches", "the role and its privileges match")


def of_error(error: PgRoleError) -> Outcome:
    if error.reason is Reason.SUSPENDED:
        return Outcome(Phase.PAUSED, error.reason, error.message)
    phase = Phase.STALLED if isinstance(error, Refused) else Phase.WORKING
    return Outcome(
        phase,
        error.reason,
        error.message,
        by_databases=isinstance(error, WaitingForDatabases),
        for_now=isinstance(error, RefusedForNow),
    )


def of_contest(summary: str, outcome: Outcome) -> Outcome:
    """The outcome of a reconcile while a field is contested: not Ready until the contest ends. `summary` describes the
    contest.
    """
    rest = "everything else matches the spec" if outcome.ready else outcome.message
    return Outcome(Phase.WORKING, Reason.CONTESTED, f"{summary}. Apart from that: {rest}")


def combine(*outcomes: Outcome) -> Outcome:
    """Returns one outcome for several that are not Ready. The first that someone has to resolve comes first: the object
    does not become Ready before. The object is retried if any of them is.
    """
    first = min(outcomes, key=_precedence)
    others = [one for one in outcomes if one is not first]
    return replace(
        first,
        message="; ".join([first.message, *(one.message for one in others)]),
        by_databases=all(one.by_databases for one in outcomes),
        for_now=first.for_now or any(one.retried for one in others),
    )


def _precedence(outcome: Outcome) -> int:
    return _PRECEDENCE.index(outcome.phase)


def of_read_back(plan: Plan) -> Outcome:
    """The outcome of the plan after read back: Ready only if nothing is left to do."""
    if plan.writes:
        return PROGRESSING
    outcome = combine(*map(of_error, plan.pending)) if plan.pending else RECONCILED
    if not plan.reported:
        return outcome
    fields = ", ".join(plan.reported) + (f"; {UNFIT}" if plan.unfit else "")
    text = f"drift detected but not corrected, since spec.drift.policy is Report: {fields}"
    if plan.pending:
        return replace(outcome, reason=Reason.DRIFT_REPORTED, message=f"{text}; {outcome.message}")
    return Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, text)


def add_privileges(outcome: Outcome, privileges: GrantedPrivileges, expected: Sequence[str]) -> Outcome:
    """Returns the outcome of role and privileges.

    `expected`: databases in which privileges are, or were, declared. Drift of the role that is reported remains the
    reason: nothing else announces it. The databases' workers retry failures there. No worker notices that what was
    given up was revoked by hand. Ignored privileges need not match.
    """
    if not expected or outcome is PROGRESSING:
        return outcome
    if not outcome.ready and privileges.grantee is None:
        return outcome  # the role was dropped: no database will answer
    databases = sorted(expected)
    errors = {name: error for name in databases if (error := privileges.error_in(name))}
    unanswered = [name for name in databases if privileges.current_result(name) is None]
    if errors:
        outcome = _add_errors(outcome, errors, privileges)
    elif unanswered and outcome.phase in (Phase.DONE, Phase.PAUSED):
        return replace(PROGRESSING, message=_being_applied(unanswered), by_databases=True, unanswered=True)
    if privileges.reported:
        return replace(_of_reported(outcome, privileges), by_databases=outcome.ready)
    if not outcome.ready:
        return outcome
    ignored = privileges.grantee is not None and privileges.grantee.ignored
    message = outcome.message if ignored else mention_privileges(outcome.message)
    return replace(outcome, message=message + _explain_idle_creators(privileges))


def _explain_idle_creators(privileges: GrantedPrivileges) -> str:
    """Default privileges are set in schemas, so creators without schemas have no effect."""
    declared = privileges.grantee.declared.values() if privileges.grantee is not None else ()
    idle = sorted(one.database for one in declared if one.created_by and not one.schemas)
    if not idle:
        return ""
    return (
        f"; spec.privileges: createdBy has no effect in database {quote_some(idle)}, for which no schemas are listed: "
        "list them, or remove it"
    )


def _add_errors(outcome: Outcome, errors: Mapping[str, PgRoleError], privileges: GrantedPrivileges) -> Outcome:
    found = _of_databases({name: _of_database(name, error, privileges) for name, error in errors.items()})
    if outcome.ready:
        return found
    both = combine(outcome, found)
    if outcome.reason is Reason.DRIFT_REPORTED:
        return replace(both, reason=outcome.reason, message=f"{outcome.message}; {found.message}")
    return both


def _of_database(database: str, error: PgRoleError, privileges: GrantedPrivileges) -> Outcome:
    named = f'"{database}"' in error.message
    message = error.message if named else f'privileges in database "{database}": {error.message}'
    return replace(
        of_error(error),
        message=cut_middle(message, LONGEST_OF_DATABASE),
        by_databases=database not in privileges.problems and privileges.declares(database),
    )


def _of_databases(outcomes: Mapping[str, Outcome]) -> Outcome:
    """Combines the outcomes by database. Those whose messages do not fit are only named."""
    names = sorted(outcomes, key=lambda name: _precedence(outcomes[name]))
    message = ""
    for shown in range(min(len(names), _MOST_DATABASES), 0, -1):
        message = "; ".join(outcomes[name].message for name in names[:shown])
        if others := [f'"{name}"' for name in names[shown:]]:
            message += f" (also not as declared in {name_some(others)})"
        if len(message) <= LONGEST_MESSAGE:
            break
    return replace(combine(*(outcomes[name] for name in names)), message=message)


def _being_applied(databases: Sequence[str]) -> str:
    more = f" (and in {len(databases) - 1} more)" if len(databases) > 1 else ""
    return f'privileges in database "{databases[0]}"{more} are being applied'


def _of_reported(outcome: Outcome, privileges: GrantedPrivileges) -> Outcome:
    words = name_some(privileges.reported, "; ")
    if privileges.unfit and UNFIT not in outcome.message:
        words = f"{words}; {UNFIT}"
    if outcome.reason is Reason.DRIFT_REPORTED:
        return replace(outcome, message=f"{outcome.message}; {words}")
    declarable = any(one.reported and one.declarable for one in privileges.current_results)
    if declarable and privileges.grantee is not None and privileges.grantee.report_only:
        why = "drift detected but not corrected, since spec.drift.policy is Report"
    else:
        why = "privileges that no PgRole can declare are reported and not revoked: revoke those that are not wanted"
    if outcome.ready:
        return Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, f"{why}: {words}")
    return replace(outcome, reason=Reason.DRIFT_REPORTED, message=f"{why}: {words}; {outcome.message}")
