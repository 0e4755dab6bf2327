"""Finds what a role has beyond what is declared or allowed. The changes only take away."""

from pgrole_controller.core.diff import Change, RevokeMembership, RevokeOption, SetAttribute, SetParameter, diff
from pgrole_controller.core.policy import Policy, References, is_reserved, may_pass_on, why_not_joined
from pgrole_controller.core.role import POWERS, Role


def excess_changes(
    policy: Policy, desired_role: Role, existing: Role, references: References, *, drifted: bool
) -> tuple[Change, ...]:
    """Returns the changes that take away what `desired_role` lacks. `drifted`: every such difference is certainly
    drift.
    """
    return tuple(
        change
        for change in diff(desired_role, existing)
        if _is_beyond(policy, change, references) or (drifted and _takes_away(change))
    )


def _is_beyond(policy: Policy, change: Change, references: References) -> bool:
    """Tells whether the change takes away something that no object could declare."""
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in POWERS and attribute not in policy.attributes
        case RevokeMembership(group=group):
            return why_not_joined(policy, group, references) is not None
        case RevokeOption(group=group, option="admin"):
            return not may_pass_on(policy, group)
        case SetParameter(name=name, value=None):
            return is_reserved(policy, name, references)
    return False


def _takes_away(change: Change) -> bool:
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in (*POWERS, "login")
        case SetParameter(value=None) | RevokeMembership() | RevokeOption():
            return True
    return False
