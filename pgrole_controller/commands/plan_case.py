"""An object that `plan` or `diff` evaluates, and what they find out about it on the way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgrole_controller.commands.plan_privileges import PlannedPrivileges
from pgrole_controller.controller.objects import Target
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.state import Observed

if TYPE_CHECKING:
    from pgrole_controller.api.pgrole import PgRole


@dataclass(frozen=True, slots=True)
class Subject:
    """An object to evaluate.

    `place`: file and line. Empty `uid`, `namespace_uid`: it is not in the cluster. `labels`: of its namespace; None:
    unknown. `cluster_read`: whether a cluster was asked for it. `status`: of the object in the cluster.
    """

    key: Key
    pgrole: "PgRole"
    place: str = ""
    uid: str = ""
    namespace_uid: str = ""
    labels: Mapping[str, str] | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    created: datetime | None = None
    cluster_read: bool = False


@dataclass(slots=True)
class PlanCase:
    """One object on its way to a result."""

    subject: Subject
    target: Target | None = None
    observed: Observed | PgRoleError | None = None
    decision: Plan | PgRoleError | None = None
    assumed: bool = False
    privileges: PlannedPrivileges | None = None
