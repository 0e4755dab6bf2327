"""What is done about the role of an object that is refused: nothing is given, and what others gave is taken away.

Without this, whoever gets a role more than it may have would only need its object refused for anything else. What the
object declares stays as it is, allowed or not: a policy that is tightened takes nothing away from the roles there are.

Taken away is what is not declared, as far as that is drift for certain (the spec is the one that was applied last) or
beyond the policy; of a spec that was changed meanwhile nothing else is known, and nothing of it is half applied.
"""

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.diff import Change, RevokeMembership, RevokeOption, SetAttribute, SetParameter, diff
from pgrole_controller.core.policy import Policy, Surroundings, may_pass_on, why_not_joined
from pgrole_controller.core.role import POWERS, Found, Role
from pgrole_controller.core.sight import Server, Sight


def find_held(claim: Claim | None, sight: Sight, server: Server) -> Found | None:
    """The role that is the object's for certain, by a claim of this very role; None where there is none."""
    if claim is None or sight.claim != claim or claim.released or claim.system_identifier != server.system_identifier:
        return None
    return next(
        (one for one in (sight.named, sight.claimed) if one and one.oid == claim.role_oid and not one.held_by), None
    )


def restraints(policy: Policy, wanted: Role, there: Role, around: Surroundings, *, drifted: bool) -> tuple[Change, ...]:
    """The changes that take away what `wanted` does not have. `drifted`: all of that is drift for certain."""
    return tuple(
        change
        for change in diff(wanted, there)
        if _is_beyond(policy, change, around) or (drifted and _takes_away(change))
    )


def _is_beyond(policy: Policy, change: Change, around: Surroundings) -> bool:
    """Whether it takes away what no object could ask for."""
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in POWERS and attribute not in policy.attributes
        case RevokeMembership(group=group):
            return why_not_joined(policy, group, around) is not None
        case RevokeOption(group=group, option="admin"):
            return not may_pass_on(policy, group)
    return False


def _takes_away(change: Change) -> bool:
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in (*POWERS, "login")
        case SetParameter(value=None) | RevokeMembership() | RevokeOption():
            return True
    return False
