"""A server as its owner declares it."""

from dataclasses import dataclass

from pgrole_controller.core.allowance import Allowance
from pgrole_controller.core.connection import Address
from pgrole_controller.postgres.connection import Endpoint


@dataclass(frozen=True, slots=True)
class DeclaredServer:
    """`address` is where applications find it, for connection Secrets."""

    name: str
    endpoint: Endpoint
    allowance: Allowance
    address: Address
    may_install: bool = True
