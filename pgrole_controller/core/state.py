"""The desired and the observed state of one object, and of its server: all that a decision is made from."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from pgrole_controller.core.claim import Claim, Owner, Proof
from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.password import DesiredPassword, ObservedSecrets, PasswordResult
from pgrole_controller.core.plan import NewOwner, ReassignResult
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.role import ObservedRole, Role
from pgrole_controller.core.scram import LEAST_ITERATIONS, Verifier

#: Where claims live: in schema pgrole of the home database, or, where there is none, in the status of the objects.
Claims = Literal["Database", "Status"]


class Mode(StrEnum):
    """What is asked for, or (but for AUTO) what is done."""

    AUTO = "Auto"  # the best that the server lets us
    WATCH = "Watch"  # schema pgrole tells of every change
    POLL = "Poll"  # digests of all roles are read every interval
    RESYNC = "Resync"  # nothing but the look at every object once in a while


@dataclass(frozen=True, slots=True)
class Detection:
    """What one session has. `mode` is never AUTO; `passwords`: whether one that was changed is noticed."""

    mode: Mode = Mode.WATCH
    passwords: bool = False
    claims: Claims = "Database"


_BEFORE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another object (namespace/name) that asks for the same role on the same server, with what it is allowed."""

    name: str
    role: Role
    policy: Policy
    adopt: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """What one object asks for.

    `older_rivals` are older than it, the oldest first; `proven_rivals` are those whose status says that they had it.
    `generation` is that of the object; `remembered` is the verifier that was set last, as far as this process knows it.
    `password_result` is what the password task brought that the look before asked for, `reassign_result` what came of
    emptying the role for `new_owner`.
    """

    owner: Owner
    role: Role
    generation: int = 0
    adopt: bool = False
    report_only: bool = False
    drop: bool = False
    ignore: frozenset[str] = frozenset()  # fields of Role that are left to others once the role is there
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


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server that was looked at; `own_roles` are the names that the controller acts under.

    `address` is where applications find it, `claims` where it is written whose a role is. `uid` and `generation` are
    those of its PgServer; `notes_generations`: claims there say what was last acted on. `away`: Kubernetes cannot be
    reached, and what was applied before is all that is kept (core/decision.py).
    """

    system_identifier: int
    own_roles: frozenset[str]
    cluster: str
    address: Address
    claims: Claims = "Database"
    uid: str = ""
    generation: int = 0
    notes_generations: bool = False
    away: bool = False


@dataclass(frozen=True, slots=True)
class Dependents:
    """What in one database still needs a role that shall be dropped. `database` is empty for what the server shares.

    `members` of the `count` are members of the role, which lose it when it is dropped.
    """

    database: str
    count: int
    members: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there for one object, as read in one query.

    `named` has the desired name; `claimed` is the role with the claim's oid, when that is another one; `former` are
    claims of this object's namespace and name for other role names, as (role name, uid of the object). `at` is the
    server's time, `iterations` what it would make a verifier with. `row` is all that it was read from, except the time;
    empty where that was not one row.
    """

    named: ObservedRole | None = None
    claimed: ObservedRole | None = None
    claim: Claim | None = None
    former: tuple[tuple[str, str], ...] = ()
    dependents: tuple[Dependents, ...] = ()
    sessions: int = 0
    new_owner: NewOwner | None = None
    references: References = field(default_factory=References)
    at: datetime = _BEFORE
    iterations: int = LEAST_ITERATIONS
    row: tuple[object, ...] = field(default=(), compare=False, repr=False)
