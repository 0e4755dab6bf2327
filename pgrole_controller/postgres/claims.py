"""The claims of a server for its administrator: list, release, forget, transfer.

Every change is one transaction, which takes the same lock as the controllers, verifies that the claims are still those
that were shown, and changes all of them or none. Triggers on the claims notify the controllers at once.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache

import anyio

from pgrole_controller import resources
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.ownership import ANY_NAMESPACE
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import explaining, identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import Row, fetch, fetch_row
from pgrole_controller.postgres.schema import check_connected_home

#: Time limit of one command in seconds, lock waits included.
CHANGE_SECONDS = 30.0

#: Bytes of one answer: enough for any number of claims, since this process serves one person and one server.
_VOLUME = 1 << 30


class ClaimedRoleState(StrEnum):
    """The state of the role of a claim; defined in sql/claims/list.sql."""

    THERE = "there"
    RENAMED = "renamed"
    REPLACED = "replaced"
    GONE = "gone"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which claims to select; None: any."""

    cluster: str | None = None
    namespace: str | None = None
    role: str | None = None
    released: bool | None = None


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """One claim as it was read. `seen_as` is the current name of a renamed role, else empty."""

    claim: Claim
    released_at: datetime | None
    role: ClaimedRoleState
    seen_as: str = ""

    @property
    def awaited(self) -> bool:
        """Whether it was transferred and no object has taken it yet: any namespace of that name may."""
        return self.claim.owner.namespace_uid == ANY_NAMESPACE

    @property
    def holder(self) -> tuple[str, int, int, Owner, datetime | None]:
        """What must be the same when a claim is shown and when it is changed."""
        claim = self.claim
        return (claim.role_name, claim.role_oid, claim.system_identifier, claim.owner, self.released_at)


class ChangedMeanwhile(PgRoleError):
    """The claims are not those that were shown; nothing was changed."""


class ClaimsElsewhere(Refused):
    """Schema pgrole is that of a database other than the home."""


@asynccontextmanager
async def claims_of(endpoint: Endpoint) -> AsyncIterator[Connection]:
    """A connection to the home database. Raises PgRoleError, which names the GRANT if a privilege is missing, and
    ClaimsElsewhere if the database has no claims.
    """
    async with connect(replace(endpoint, volume=_VOLUME), "claims") as connection, explaining(connection):
        await identify(connection)
        await _check_claims(connection)
        yield connection


async def _check_claims(connection: Connection) -> None:
    row = await fetch_row(connection, queries.inspect("own_table"), "claim")
    if row.get("has_table", bool):
        return  # also if another database is recorded: claims can be left here
    await check_connected_home(connection)
    if row.get("present", bool):
        raise ClaimsElsewhere(Reason.SERVER_NOT_READY, "schema pgrole has no claims in this database")


async def list_claims(connection: Connection, selection: Selection) -> list[ListedClaim]:
    """The selected claims, sorted by cluster, namespace, object and role. Raises PgRoleError."""
    with translate_errors(), anyio.fail_after(CHANGE_SECONDS, shield=True):
        async with connection.transaction(readonly=True):
            await connection.execute(queries.guard())
            return await _list(connection, selection)


async def release(connection: Connection, selection: Selection, shown: Sequence[ListedClaim]) -> None:
    """Releases the claims that were shown. Raises PgRoleError if nothing was changed."""
    async with _changing(connection, selection, shown) as names:
        _expect(await connection.execute(_sql("release"), names), len(names))


async def forget(connection: Connection, selection: Selection, shown: Sequence[ListedClaim]) -> None:
    """Deletes the claims that were shown, which must be released. Raises PgRoleError if nothing was changed."""
    async with _changing(connection, selection, shown) as names:
        _expect(await connection.execute(_sql("forget"), names), len(names))


async def transfer(
    connection: Connection, selection: Selection, shown: Sequence[ListedClaim], cluster: str, *, with_released: bool
) -> None:
    """Transfers the claims that were shown to a cluster, whose objects with the same namespace and name take them.

    Released claims can only be taken in the namespace with the same uid, unless `with_released`. Raises PgRoleError if
    nothing was changed.
    """
    for_any = [one.claim.role_name for one in shown if with_released or one.released_at is None]
    async with _changing(connection, selection, shown) as names:
        _expect(await connection.execute(_sql("transfer"), names, for_any, cluster), len(names))


@asynccontextmanager
async def _changing(
    connection: Connection, selection: Selection, shown: Sequence[ListedClaim]
) -> AsyncIterator[list[str]]:
    """A transaction for changing the claims that were shown, which it verifies. Yields the names of their roles."""
    with translate_errors(), anyio.fail_after(CHANGE_SECONDS, shield=True):
        async with connection.transaction():
            await connection.execute(queries.guard())
            # its name in version 3 of the schema, kept in version 4
            await connection.execute("SELECT pgrole.take_turn()")
            now = await _list(connection, selection)
            if [one.holder for one in now] != [one.holder for one in shown]:
                raise ChangedMeanwhile(
                    Reason.PROGRESSING,
                    "the claims changed after they were shown, so nothing was done: run the command again",
                )
            yield [one.claim.role_name for one in shown]


def _expect(tag: str, count: int) -> None:
    """Raises Transient, which rolls back, unless all rows were changed: a trigger or rule may have interfered."""
    if tag.rpartition(" ")[2] != str(count):
        raise Transient(
            Reason.DATABASE_ERROR,
            f"the command changes {count} claims, but PostgreSQL reports {tag!r}; nothing was done",
        )


async def _list(connection: Connection, selection: Selection) -> list[ListedClaim]:
    rows = await fetch(
        connection, _sql("list"), selection.cluster, selection.namespace, selection.role, selection.released
    )
    return [_listed(row) for row in rows]


def _listed(row: Row) -> ListedClaim:
    released_at, role = row.find("released_at", datetime), row.get("role", str)
    claim = Claim(
        role_name=row.get("role_name", str),
        role_oid=row.get("role_oid", int),
        system_identifier=row.get("system_identifier", int),
        owner=Owner(
            *(row.get(name, str) for name in ("cluster", "namespace", "namespace_uid", "object", "object_uid"))
        ),
        applied=row.get("applied", str),
        drift_count=row.get("drift_count", int),
        last_drift_at=row.find("last_drift_at", datetime),
        last_drift_fields=row.some("last_drift_fields", str),
        released=released_at is not None,
    )
    if role not in set(ClaimedRoleState):
        raise row.wrong("role")
    return ListedClaim(claim, released_at, ClaimedRoleState(role), row.find_text("seen_as") or "")


@cache
def _sql(name: str) -> str:
    return resources.text("sql", "claims", f"{name}.sql")
