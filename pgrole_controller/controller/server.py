"""A server as its owner declares it: by a PgServer, or by PGROLE_DSN for the one named default."""

from dataclasses import dataclass, field

from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.state import Mode
from pgrole_controller.postgres.connection import Endpoint

#: The server that PGROLE_DSN stands for, unless a PgServer has this name.
DEFAULT_SERVER = "default"


@dataclass(frozen=True, slots=True)
class DeclaredServer:
    """`address` is where applications find it. `endpoint` None: `problem` says why it cannot be connected to.

    `mode` is how changes are to be noticed; by Poll, every `interval` seconds.
    `lapsed`: what `endpoint` was made from is missing by now (`problem`): a session goes on with it, and none begins.
    `age` decides between two that are one server: creationTimestamp, then uid. `generation` is that of the PgServer.
    """

    name: str
    endpoint: Endpoint | None
    server_policy: ServerPolicy
    address: Address
    may_install: bool = True
    mode: Mode = Mode.AUTO
    interval: float = 1.0
    resync_seconds: float = 3600.0
    age: tuple[str, str] = ("", "")
    generation: int = 0
    problem: PgRoleError | None = field(default=None, compare=False)
    lapsed: bool = field(default=False, compare=False)

    @property
    def uid(self) -> str:
        """Of the PgServer; empty for the server of PGROLE_DSN."""
        return self.age[1]

    @property
    def access(self) -> tuple[object, ...]:
        """What a session depends on: when it is another one, the server is connected to anew."""
        return self.endpoint, self.may_install, self.mode, self.interval
