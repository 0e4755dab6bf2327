"""What a server's policy does with an exported object: comments in the export say it."""

from collections.abc import Mapping
from typing import Any

from pgrole_controller.api.reading import read_pgrole
from pgrole_controller.core.desired import desired_role_of
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.names import name_some
from pgrole_controller.core.policy import (
    Policy,
    References,
    check_desired,
    check_memberships,
    check_parameters,
    check_within_policy,
    is_only_for_superusers,
)
from pgrole_controller.core.role import ObservedRole, Role


def find_refusal(found: ObservedRole, document: Mapping[str, Any], policy: Policy, references: References) -> str:
    """Returns why the server's policy would refuse the object; empty if it would not."""
    desired = desired_role_of(read_pgrole(dict(document)))
    try:
        if found.reaches:  # whatever the object declares
            check_within_policy(policy, found, action="adoption", references=references)
        check_desired(policy, desired)
        check_memberships(policy, desired, references)
        check_parameters(policy, desired, references)
        if not policy.adopt:
            return "the server's policy does not allow adoption: ask the server's administrator for allow.adopt"
        check_within_policy(policy, found, action="adoption", references=references)
    except Refused as refusal:
        return refusal.message
    return ""


def find_reset(found: ObservedRole, document: Mapping[str, Any], policy: Policy, references: References) -> str:
    """Returns which ignored parameters the controller resets all the same, and why; empty without any."""
    ignored, role = document["spec"].get("drift", {}).get("ignore", ()), found.role
    left = Role(
        role.name,
        parameters=role.parameters if "parameters" in ignored else (),
        database_parameters=role.database_parameters if "databaseParameters" in ignored else (),
    )
    reset = sorted(name for name in left.parameter_names if is_only_for_superusers(policy, name, references))
    if not reset:
        return ""
    return (
        f"{name_some(reset)}: for superusers, unless the server's policy lists it: reset it, or ask the server's "
        "administrator for allow.parameters"
    )
