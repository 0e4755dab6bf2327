"""Where the claims of one server are kept, as one interface: in schema pgrole, or in the status of the objects.

A session reads and changes roles through a `ClaimStore`, so that reads return each role together with its claim, and a
transaction changes both or neither. Two classes implement it, and both pass tests/integration/test_claim_store.py:

- `DatabaseClaims`: the rows of pgrole.claim;
- `StatusClaims`: a copy in memory of what the status of the objects says, for a server without schema pgrole.

Every coroutine raises PgRoleError.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import NewOwner, Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection, roll_back
from pgrole_controller.postgres.errors import translate_errors

#: Time limit of one transaction in seconds, lock waits included. It is not interrupted, so stopping may take that long.
TRANSACTION_SECONDS = 4.0

#: How a transaction that changes something begins. How long it waits for the lock on changes: transactions of other
#: controllers may take long.
CHANGE_TIMEOUTS = ("SET LOCAL lock_timeout = '2s'", "SET LOCAL statement_timeout = '3500ms'")

_UNANSWERED = (
    "PostgreSQL gives no answer in time to a transaction. If the controller's session waits for SyncRep "
    "(pg_stat_activity.wait_event), start the synchronous standby, or remove it from synchronous_standby_names"
)

#: Claims read at once: they take at most 3 MiB of `framing.VOLUME`, and 0.02 s of the event loop.
CLAIMS_PAGE = 5000


class HeldClaim(NamedTuple):
    """A claim that is not released."""

    key: Key
    role_name: str
    object_uid: str


class HeldClaims(NamedTuple):
    """One page. `after`: the role name after which the next page begins; None: this is the last one."""

    claims: Sequence[HeldClaim]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class HomeConnection:
    """A connection to the home database, the server it is on, and the cluster whose objects are reconciled there."""

    connection: Connection
    identity: Identity
    cluster: str


class ClaimStore(Protocol):
    """The claims of one server, and the reads and transactions that involve them."""

    @property
    def has_current_schema(self) -> bool:
        """Whether schema pgrole has this controller's version: claims record the generations of the objects that were
        last reconciled, and declared privileges, and there is a table of drifts.
        """
        ...

    async def read_roles(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        """Role and claim for each (key, role name), in order; the role name is empty if the object was deleted.

        An object whose rows cannot be read gets its own error; `Deferred` if it must be read alone. References are read
        separately (`catalog.read_references`).
        """
        ...

    async def are_unchanged(
        self,
        home: HomeConnection,
        asked: Sequence[tuple[Key, str]],
        before: Sequence[tuple[object, ...]],
    ) -> list[bool]:
        """Whether role and claim of each (key, role name) still equal `before`, the `row` of an earlier `Observed`.

        False wherever this cannot be determined; `read_roles` then reports why. Raises only if the connection is lost.
        """
        ...

    async def read_new_owners(self, home: HomeConnection, names: Collection[str]) -> dict[str, NewOwner]:
        """The existing roles among these names, each with the object that claims it."""
        ...

    async def read_verifiers(self, home: HomeConnection, oids: Sequence[int]) -> dict[int, Verifier]:
        """Password verifiers by role oid. Roles without a password or with an unreadable one are left out."""
        ...

    async def read_held(self, home: HomeConnection, after: str = "") -> HeldClaims:
        """One page of the claims of this cluster that are not released: those on role names after this one.

        Claims that cannot be read are left out.
        """
        ...

    async def read_namespace_roles(
        self, home: HomeConnection, namespaces: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], frozenset[int]]:
        """Oids of the roles that each namespace (name, uid) claims on this server: at most 10,000 each."""
        ...

    def opening(self) -> list[str]:
        """The first statements of a transaction: take the lock on changes, check that changes are not suspended."""
        ...

    def statements(self, plan: Plan, *, options: bool, enforcing: bool) -> Iterator[str]:
        """The statements of one plan: check what was read, change the role, change the claim.

        `options`: memberships have INHERIT and SET (PostgreSQL 16 and later). `enforcing`: Kubernetes cannot be
        reached, so the claim must still have the applied state that was read.
        """
        ...

    async def commit(self, connection: Connection, plans: Sequence[Plan], script: str) -> None:
        """Runs `script`, the statements of these plans, as one transaction. If it raises, nothing was changed."""
        ...


def changes_role(plan: Plan) -> bool:
    """Whether a plan changes a role or its claim, and does more than release other claims."""
    return bool(plan.changes or plan.owner or plan.record or plan.forget)


@asynccontextmanager
async def limited_transaction(connection: Connection) -> AsyncIterator[None]:
    """The time limit of one transaction. asyncpg's own ROLLBACK is cancelled with its task, so this is shielded, and
    rolls back a transaction that had no answer in time.
    """
    with translate_errors("transaction"):
        try:
            with anyio.fail_after(TRANSACTION_SECONDS, shield=True):
                yield
        except TimeoutError as error:
            if not connection.is_closed() and connection.is_in_transaction():
                await roll_back(connection)
            raise Transient(Reason.SERVER_NOT_READY, _UNANSWERED) from error
