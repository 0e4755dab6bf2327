"""What may be done while Kubernetes cannot be reached: what was applied before is kept, and nothing else.

A database that enforces its roles does not depend on Kubernetes, but what is known here may be old by then. The claim
says what was last acted on, so a drift is repaired only where that is exactly what this process knows. Nothing is
created for the first time, adopted, dropped, handed over, released or generated, and no Secret is read.
"""

from dataclasses import replace

from pgrole_controller.core.claim import Generations
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.sight import Ask, Server, Sight


def generations_of(ask: Ask, server: Server) -> Generations:
    """What is declared, as far as this process knows."""
    return Generations(ask.generation, server.uid, server.generation)


def check_enforceable(ask: Ask, sight: Sight, server: Server) -> None:
    """Raises Transient unless the claim is this object's, and says that what is known here was last acted on."""
    claim = sight.claim
    if ask.terminating or ask.suspended or ask.report_only:
        raise _wait("the object is being deleted or is suspended, or its drift policy is Report")
    if claim is None or claim.owner != ask.owner or claim.released:
        raise _wait("the claim on the role does not belong to this object")
    if claim.system_identifier != server.system_identifier:
        raise _wait("the claim on the role was made on another server")
    if claim.generations != generations_of(ask, server):
        raise _wait("the PgRole or its PgServer has changed since it was last reconciled")


def keep_applied(plan: Plan) -> Plan:
    """The plan as far as it repairs a drift. Raises Transient when it would apply anything new."""
    claim = plan.claim
    if claim is None or plan.applied != claim.applied:
        raise _wait("the spec differs from the state last applied")
    return replace(plan, record=None, errand=None, disown=None, releases=(), forget=False, acted_on=None)


def _wait(why: str) -> Transient:
    return Transient(Reason.PROGRESSING, f"the controller cannot reach Kubernetes and leaves the role unchanged: {why}")
