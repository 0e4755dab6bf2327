"""Combines the outcome of a role with those of its databases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgrole_controller.core.approval import UNFIT
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.names import name_some
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.status import PROGRESSING, Outcome, Phase, combine, mention_privileges, of_error


def find_problems(grantee: Grantee, existing: frozenset[str]) -> dict[str, PgRoleError]:
    """Returns, by database, why no worker can serve it. `existing`: the ones of these databases that exist."""
    problems: dict[str, PgRoleError] = {}
    for database in sorted(grantee.databases):
        refused = check_database(grantee.policy, database, declared=database in grantee.declared)
        if refused is not None:
            problems[database] = refused
        elif database not in existing and database in grantee.declared:
            problems[database] = Waiting(
                Reason.PRIVILEGE_PENDING,
                f'spec.privileges: database "{database}" does not exist yet: create it, or remove it from spec',
            )
    return problems


def add_privileges(outcome: Outcome, privileges: GrantedPrivileges, expected: Sequence[str]) -> Outcome:
    """Returns the outcome of role and privileges.

    `expected`: databases in which privileges are, or were, declared. Drift of the role that is reported remains the
    reason: nothing else announces it. The databases' workers retry failures there. No worker notices that what was
    given up was revoked by hand.
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
    if outcome.ready:
        return replace(outcome, message=mention_privileges(outcome.message))
    return outcome


def _add_errors(outcome: Outcome, errors: Mapping[str, PgRoleError], privileges: GrantedPrivileges) -> Outcome:
    by_databases = not any(name in privileges.problems or not privileges.declares(name) for name in errors)
    found = replace(_of_errors(errors), by_databases=by_databases)
    if outcome.ready:
        return found
    both = combine(outcome, found)
    if outcome.reason is Reason.DRIFT_REPORTED:
        return replace(both, reason=outcome.reason, message=f"{outcome.message}; {found.message}")
    return both


def _of_errors(errors: Mapping[str, PgRoleError]) -> Outcome:
    database, error = next(iter(errors.items()))
    named = f'"{database}"' in error.message
    message = error.message if named else f'privileges in database "{database}": {error.message}'
    others = [f'"{name}"' for name in errors if name != database]
    if others:
        message += f" (also not as declared in {name_some(others)})"
    return replace(of_error(error), message=message)


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
