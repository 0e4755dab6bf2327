"""A server as its owner declares it: by a PgServer, or by PGROLE_DSN for the one named default."""

from dataclasses import dataclass, field

from pgrole_controller.core.allowance import Allowance
from pgrole_controller.core.connection import Address
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.postgres.connection import Endpoint

#: The server that PGROLE_DSN stands for, unless a PgServer has this name.
DEFAULT_SERVER = "default"


@dataclass(frozen=True, slots=True)
class DeclaredServer:
    """`address` is where applications find it. `endpoint` None: `problem` says why it cannot be connected to.

    `age` decides between two that are one server: creationTimestamp, then uid.
    """

    name: str
    endpoint: Endpoint | None
    allowance: Allowance
    address: Address
    may_install: bool = True
    resync_seconds: float = 3600.0
    age: tuple[str, str] = ("", "")
    problem: PgRoleError | None = field(default=None, compare=False)
