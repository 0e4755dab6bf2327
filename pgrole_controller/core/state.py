"""The desired and the observed state of one object and its server: everything that a decision depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pgrole_controller.core.approval import Approval
from pgrole_controller.core.claim import Claim, ClaimKey, Owner, Proof
from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.password import DesiredPassword, ObservedSecrets, PasswordResult
from pgrole_controller.core.plan import NewOwner, ReassignResult
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.privileges.grantee import DatabasePrivileges
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.role import ObservedRole, Role
from pgrole_controller.core.scram import LEAST_ITERATIONS, Verifier
from pgrole_controller.core.server_options import Mode

#: Where claims are stored: in schema pgrole of the home database, or in the objects' status if there is no schema.
Claims = Literal["Database", "Status"]


@dataclass(frozen=True, slots=True)
class Detection:
    """Detection in effect for one session. `mode` is never AUTO; `passwords`: changed passwords are noticed."""

    mode: Mode = Mode.WATCH
    passwords: bool = False
    claims: Claims = "Database"


_BEFORE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another object (namespace/name) that declares the same role on the same server, with its policy."""

    name: str
    role: Role
    policy: Policy
    adopt: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """What one object declares.

    - `generation`: the object's.
    - `older_rivals`: those older than this object, oldest first.
    - `proven_rivals`: those whose status shows that they had the role.
    - `remembered`: the verifier that was last set, if this process still knows it.
    - `password_result`: result of the password task that the last reconcile started.
    - `reassign_result`: result of emptying the role for `new_owner`.
    - `privileges`: what the role may do, by database. A listed database is exact. None: not managed.
    - `privileges_ignored`: spec.drift.ignore lists privileges.
    - `privilege_results`: the latest result of each database's worker.
    - `approval`: of reported drift, by annotation.
    - `refusal`: why the settings, which `role` lacks then, cannot be read.
    """

    owner: Owner
    role: Role
    generation: int = 0
    adopt: bool = False
    report_only: bool = False
    drop: bool = False
    ignore: frozenset[str] = frozenset()  # fields of Role that are left to others once the role exists
    suspended: bool = False
    terminating: bool = False
    proof: Proof | None = None
    older_rivals: tuple[Rival, ...] = ()
    proven_rivals: tuple[tuple[str, Proof], ...] = ()
    password: DesiredPassword = field(default_factory=DesiredPassword)
    connection: DesiredSecret | None = None
    new_owner: str = ""
    terminate_sessions: bool = False
    reassign_result: ReassignResult | None = None
    secrets: ObservedSecrets = field(default_factory=ObservedSecrets)
    password_result: PasswordResult | None = None
    remembered: Verifier | None = field(default=None, repr=False)
    privileges: Mapping[str, DatabasePrivileges] | None = None
    privileges_ignored: bool = False
    privilege_results: Mapping[str, PrivilegeResult] = field(default_factory=dict)
    approval: Approval = field(default_factory=Approval)
    refusal: Refused | None = field(default=None, compare=False)


#: The first major version that the controller supports.
OLDEST_VERSION = 14


@dataclass(frozen=True, slots=True)
class Server:
    """The server that was read.

    - `own_roles`: names of the roles that the controller acts under.
    - `address`: where applications reach it.
    - `claims`: where ownership is recorded.
    - `uid`, `generation`: those of its PgServer.
    - `has_current_schema`: claims there are rows that record declared privileges and the generations last acted on:
      schema pgrole is present, and not of the previous version.
    - `enforcing`: Kubernetes is unreachable, so only what was applied before is maintained (core/decision.py).
    """

    system_identifier: int
    own_roles: frozenset[str]
    address: Address
    claims: Claims = "Database"
    uid: str = ""
    generation: int = 0
    has_current_schema: bool = False
    enforcing: bool = False

    @property
    def keeps_approvals(self) -> bool:
        """Whether claims there record which approval was handled."""
        return self.claims == "Status" or self.has_current_schema

    def find_expected_claim(self, claim: Claim, observed: "Observed") -> Claim | None:
        """Returns what the transaction must find as the role's claim, for an object that owns the role by `claim`: what
        was read in the database, None if only status proves the claim. Without schema pgrole, `claim` itself.
        """
        return claim if self.claims == "Status" else observed.claim


@dataclass(frozen=True, slots=True)
class Dependents:
    """What in one database depends on a role to be dropped; `database` is empty for shared objects.

    - `members`: of the `count`, members of the role; they lose the membership when it is dropped.
    - `others`: if not 0, it is of so many databases beyond those that are read one by one; `database` is empty then.
    """

    database: str
    count: int
    members: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What exists for one object, read in one query.

    - `named`: the role with the desired name.
    - `claimed`: the role with the claim's oid, if that is another one and the claim is not released.
    - `other_claims`: claims of this namespace and name on other roles.
    - `unheld`: of the databases that only former specs declare, and of those that adoption would make exact: where
      the role has no privileges at all.
    - `owned`: oids of the roles that the object's namespace claims, if the object may take over an existing role.
    - `at`: the server's time.
    - `iterations`: what the server would use for a new verifier.
    - `row`: everything this was read from, except the time; empty if it was not exactly one row.
    """

    named: ObservedRole | None = None
    claimed: ObservedRole | None = None
    claim: Claim | None = None
    other_claims: tuple[ClaimKey, ...] = ()
    dependents: tuple[Dependents, ...] = ()
    sessions: int = 0
    new_owner: NewOwner | None = None
    references: References = field(default_factory=References)
    unheld: frozenset[str] = frozenset()
    owned: frozenset[int] = frozenset()
    at: datetime = _BEFORE
    iterations: int = LEAST_ITERATIONS
    row: tuple[object, ...] = field(default=(), compare=False, repr=False)

    def find_left_behind(self, object_uid: str) -> tuple[ClaimKey, ...]:
        """Returns the other claims that are not this object's: earlier objects of its name left them."""
        return tuple(one for one in self.other_claims if one.object_uid != object_uid)
