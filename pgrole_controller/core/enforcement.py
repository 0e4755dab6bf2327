"""Reduces a plan to what is allowed while Kubernetes is unreachable.

The controller then maintains what was applied before and does nothing else: a database should not depend on Kubernetes
to enforce its roles, but the known state may be outdated. The claim records the generations last acted on, so a drift
is repaired only if they equal what this process knows. Nothing is created for the first time, adopted, dropped, handed
over, released or generated, and no Secret is read.
"""

from dataclasses import replace

from pgrole_controller.core.claim import Claim, Generations
from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.core.password_rules import is_cleared
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.state import Desired, Observed, Server


def note_generations(plan: Plan, desired: Desired, observed: Observed, server: Server) -> Plan:
    """Adds the current generations to the plan where the object's claim lacks them."""
    if desired.terminating or not server.has_current_schema or any(isinstance(one, Refused) for one in plan.pending):
        return plan
    claim, known = observed.claim, generations_of(desired, server)
    held = plan.owner is not None or (claim is not None and claim.is_held_by(desired.owner))
    if not held or (claim is not None and claim.owner == desired.owner and claim.generations == known):
        return plan
    return replace(plan, acted_on=known)


def has_same_spec(desired: Desired, claim: Claim, server: Server) -> bool:
    """Tells whether the claim records that this very spec was applied, as far as what it names existed."""
    noted = server.has_current_schema and claim.owner == desired.owner
    return noted and claim.generations.object == desired.generation


def generations_of(desired: Desired, server: Server) -> Generations:
    """Generations of the PgRole and its PgServer as this process knows them."""
    return Generations(desired.generation, server.uid, server.generation)


def check_enforceable(desired: Desired, observed: Observed, server: Server) -> None:
    """Raises Transient unless the object holds the claim, and the claim records exactly the generations known here."""
    claim = observed.claim
    if desired.terminating or desired.suspended or desired.report_only:
        raise _wait("the object is being deleted or is suspended, or its drift policy is Report")
    if claim is None or not claim.is_held_by(desired.owner):
        raise _wait("the claim on the role does not belong to this object")
    if claim.system_identifier != server.system_identifier:
        raise _wait("the claim on the role was made on another server")
    if claim.generations != generations_of(desired, server):
        raise _wait("the PgRole or its PgServer has changed since it was last reconciled")


def keep_applied(plan: Plan) -> Plan:
    """Reduces the plan to the repair of drift. Raises Transient if it would apply anything new."""
    claim = plan.claim
    if claim is None or plan.applied != claim.applied:
        raise _wait("the spec differs from the state last applied")
    # That a role was created again without its password is noted with it: later nothing else tells.
    record = plan.record if plan.owner and plan.record and is_cleared(plan.record) else None
    return replace(plan, record=record, password_task=None, reassign=None, releases=(), forget=False, acted_on=None)


def _wait(why: str) -> Transient:
    return Transient(Reason.PROGRESSING, f"the controller cannot reach Kubernetes and leaves the role unchanged: {why}")
