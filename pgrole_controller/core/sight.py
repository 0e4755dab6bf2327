"""What one object asks for, and what was seen of it in the database: all that a decision is made from."""

from dataclasses import dataclass, field

from pgrole_controller.core.claim import Claim, Owner, Proof
from pgrole_controller.core.policy import Surroundings
from pgrole_controller.core.role import Found, Role


@dataclass(frozen=True, slots=True)
class Ask:
    """What one object asks for.

    `older_rival` names an older object that asks for the same role on the same server; `proven_rivals` are those whose
    status says that they had it.
    """

    owner: Owner
    wanted: Role
    adopt: bool = False
    report_only: bool = False
    drop: bool = False
    ignore: frozenset[str] = frozenset()  # fields of Role that are left to others once the role is there
    suspended: bool = False
    terminating: bool = False
    proof: Proof | None = None
    older_rival: str | None = None
    proven_rivals: tuple[tuple[str, Proof], ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server that was looked at; `own_roles` are the names that the controller acts under."""

    system_identifier: int
    own_roles: frozenset[str]
    cluster: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What in one database still needs a role that shall be dropped. `database` is empty for what the server shares."""

    database: str
    count: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What is there for one object, as read in one query.

    `named` has the wanted name; `claimed` is the role with the claim's oid, when that is another one; `former` are
    claims of this object's namespace and name for other role names, as (role name, uid of the object).
    """

    named: Found | None = None
    claimed: Found | None = None
    claim: Claim | None = None
    former: tuple[tuple[str, str], ...] = ()
    needs: tuple[Needs, ...] = ()
    around: Surroundings = field(default_factory=Surroundings)
