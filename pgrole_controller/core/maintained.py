"""The part of a declared role that the controller maintains, and what a role has beyond it.

The controller maintains what can exist now and is not left to others. What a role has beyond what is declared or
allowed is only taken away.
"""

from dataclasses import replace

from pgrole_controller.core.diff import Change, RevokeMembership, RevokeOption, SetAttribute, SetParameter, diff
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.names import explain_names, quote_some
from pgrole_controller.core.policy import Policy, References, is_only_for_superusers, may_pass_on, why_not_joined
from pgrole_controller.core.role import POWERS, Role, digest
from pgrole_controller.core.state import Desired


def without_missing(desired_role: Role, references: References) -> tuple[Role, dict[str, PgRoleError]]:
    """Splits off what must wait for missing roles and databases, with the error by field of Role. It is not part of
    `applied`, so it never counts as drift.
    """
    missing = [held.role for held in desired_role.member_of if held.role not in references.groups]
    absent = [database for database, _ in desired_role.database_parameters if database not in references.databases]
    pending: dict[str, PgRoleError] = {}
    if missing:
        names = quote_some(missing)
        text = (
            f"spec.memberOf: these roles do not exist yet: {names}: create or declare them. The controller grants each "
            f"once it exists{explain_names(missing)}"
        )
        pending["member_of"] = Waiting(Reason.MEMBERSHIP_PENDING, text)
    if absent:
        names = quote_some(absent)
        text = (
            f"spec.databaseParameters: these databases do not exist yet: {names}: create them, or remove them from "
            f"spec. The controller looks for them again within 5 minutes{explain_names(absent)}"
        )
        pending["database_parameters"] = Waiting(Reason.DATABASE_ERROR, text)
    if not pending:
        return desired_role, pending
    return replace(
        desired_role,
        member_of=tuple(held for held in desired_role.member_of if held.role not in missing),
        database_parameters=tuple(item for item in desired_role.database_parameters if item[0] not in absent),
    ), pending


def without_ignored(ignore: frozenset[str], desired_role: Role, existing: Role) -> Role:
    """Returns the desired role, with ignored fields taken from the existing one."""
    if not ignore:
        return desired_role
    left = {name: getattr(existing, name) for name in ignore}
    return (
        desired_role
        if all(getattr(desired_role, name) == value for name, value in left.items())
        else replace(desired_role, **left)
    )


def digest_maintained(desired: Desired) -> str:
    """Digest of what the controller maintains; ignored fields are not part of it."""
    return digest(without_ignored(desired.ignore, desired.role, Role(desired.role.name)))


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
            return is_only_for_superusers(policy, name, references)
    return False


def _takes_away(change: Change) -> bool:
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in (*POWERS, "login")
        case SetParameter(value=None) | RevokeMembership() | RevokeOption():
            return True
    return False
