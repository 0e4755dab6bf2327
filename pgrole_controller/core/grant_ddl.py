"""SQL text of changes to privileges: GRANT, REVOKE, ALTER DEFAULT PRIVILEGES."""

from collections.abc import Iterable
from dataclasses import dataclass

from pgrole_controller.core.acl import AclChange, DefaultAclChange, ObjectId

#: Objects of one statement. Transactions are about as short as a grant on so many is.
OBJECTS_PER_STATEMENT = 100


@dataclass(frozen=True, slots=True)
class GrantStatement:
    """One statement without a closing semicolon, and what it is about.

    `objects`: sorted by oid; empty for default privileges. `acting_as`: the role in whose name it is run
    (`SET LOCAL ROLE`); empty: the controller's own.
    """

    text: str
    objects: tuple[ObjectId, ...] = ()
    acting_as: str = ""


def statements(
    changes: Iterable[AclChange],
    default_changes: Iterable[DefaultAclChange] = (),
    version: int = 0,
    *,
    cascade: bool = False,
) -> tuple[GrantStatement, ...]:
    """Returns the statements in order: revokes in delegates' names, revokes, grants; each for at most
    OBJECTS_PER_STATEMENT objects. `cascade`: REVOKE … CASCADE.
    """
    raise NotImplementedError
