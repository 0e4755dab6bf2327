"""Reads a server for a plan, inside one READ ONLY transaction that the caller has begun, and under any login.

Nothing in schema pgrole is called. Its tables are read if the login may, and if that runs no code of their owner: a
login for plans is neither the controller's role nor a superuser, so it cannot verify the schema as a session does.

Guarantees: an error of one role does not end the transaction; what could not be read is in `PlanSession`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import Mode
from pgrole_controller.core.state import Detection, Observed
from pgrole_controller.postgres import catalog, diagnosis, queries
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.claim_store import HomeConnection
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.diagnosis import Suspension
from pgrole_controller.postgres.privileges.acl_catalog import read_database
from pgrole_controller.postgres.privileges.acl_rows import CATALOGS
from pgrole_controller.postgres.privileges.stored_state import split_origin
from pgrole_controller.postgres.rows import fetch
from pgrole_controller.postgres.schema import SchemaState, check_connected_home
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.status_claims import StatusClaims
from pgrole_controller.postgres.trusted_schema import find_table, savepoint

#: As in sessions: the read of many roles uses indexes, whatever the statistics say.
_PLANNING = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"
_PLANNED = "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on"


@dataclass(frozen=True, slots=True)
class PlanSession:
    """A session that only reads. `claims_unseen`: schema pgrole exists, but its claims cannot be read.

    `claims_unsafe`: because their owner could run code as the login. `claimless`: the schema has none, as in databases
    other than the home.
    """

    session: Session
    claims_unseen: bool
    claims_unsafe: bool
    claimless: bool

    def of_cluster(self, cluster: str) -> Session:
        """The session for the objects of a cluster."""
        return replace(self.session, cluster=cluster)


class PassedOn(NamedTuple):
    """A privilege that a role granted to others. `column` is empty for the whole object. `grantees`: names."""

    privilege: str
    column: str
    grantees: tuple[str, ...]


class ClaimingNamespace(NamedTuple):
    """A namespace that claims roles."""

    cluster: str
    name: str
    uid: str
    claims: int


@dataclass(frozen=True, slots=True)
class _SeenClaims(DatabaseClaims):
    """The claims in the table, without any function of the schema. `verifiers`: a source in sql/sources."""

    verifiers: str = "no_verifiers"

    async def read_roles(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        query = queries.inspect_from("roles", claims="claims_in_database", verifiers=self.verifiers)
        async with savepoint(home.connection):
            await home.connection.execute(_PLANNING)
            rows = await catalog.fetch_roles(home, query, asked)
            await home.connection.execute(_PLANNED)
        return catalog.parse_roles(rows, asked, with_claims=True)


class _NoClaims(StatusClaims):
    """As without schema pgrole."""

    async def read_roles(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        async with savepoint(home.connection):
            return await super().read_roles(home, asked)


async def open_plan_session(connection: Connection) -> PlanSession:
    """`connection`: to the home database, in a READ ONLY transaction whose first statement this is. Raises PgRoleError,
    also for a standby, for a server that is too old, and if another database is recorded as the home.
    """
    table = await find_table(connection, "claim")
    identity = await identify(connection)
    await check_connected_home(connection)
    verifiers = queries.verifier_source(readable=identity.sees_passwords)
    claims: DatabaseClaims | StatusClaims
    if table.readable:
        claims = _SeenClaims(has_current_schema=table.keeps_privileges, verifiers=verifiers)
    else:
        claims = _NoClaims().open(identity.system_identifier)
    session = Session(
        identity,
        SchemaState.PRESENT if table.present else SchemaState.NONE,
        "",
        claims,
        connection,
        Detection(Mode.RESYNC, identity.sees_passwords, "Database" if table.present else "Status"),
    )
    return PlanSession(
        session,
        claims_unseen=table.present and not table.readable,
        claims_unsafe=table.present and table.unsafe,
        claimless=table.schema and not table.exists,
    )


async def read_owners(plan_session: PlanSession, keys: Collection[Key]) -> list[Owner]:
    """The objects of these namespaces and names that have claims, in any cluster. Raises PgRoleError."""
    session = plan_session.session
    if not isinstance(session.claims, DatabaseClaims) or not keys:
        return []
    some = sorted(keys)
    rows = await fetch(
        session._connection,  # noqa: SLF001 -- its own kind
        queries.inspect("owners"),
        [key.namespace for key in some],
        [key.name for key in some],
    )
    names = ("cluster", "namespace", "namespace_uid", "object", "object_uid")
    return [Owner(*(row.get(name, str) for name in names)) for row in rows]


async def read_claiming_namespaces(plan_session: PlanSession, names: Collection[str]) -> list[ClaimingNamespace]:
    """The namespaces of these names that claim roles, in any cluster, those with most claims first. Raises
    PgRoleError.
    """
    session = plan_session.session
    if not isinstance(session.claims, DatabaseClaims) or not names:
        return []
    rows = await fetch(
        session._connection,  # noqa: SLF001 -- its own kind
        queries.inspect("claiming_namespaces"),
        sorted(names),
    )
    return [
        ClaimingNamespace(
            row.get("cluster", str), row.get("namespace", str), row.get("namespace_uid", str), row.get("claims", int)
        )
        for row in rows
    ]


async def read_suspensions(plan_session: PlanSession, databases: Collection[str]) -> list[Suspension]:
    """The settings that suspend changes in the home database and in these others. Raises PgRoleError."""
    return await diagnosis.read_suspensions(plan_session.session._connection, databases)  # noqa: SLF001 -- its own kind


async def read_privileges(
    connection: Connection, oids: Sequence[int], reach: PrivilegeReach
) -> tuple[ObservedDatabase, dict[int, tuple[str, str]] | None]:
    """What these roles hold in the database of a connection in a READ ONLY transaction; and by oid, which holder
    (`Grantee.holder_in`) applied which digest last: None if that cannot be read. Raises PgRoleError.
    """
    table = await find_table(connection, "applied")
    applied: dict[int, tuple[str, str]] | None = None
    if table.readable:
        rows = await fetch(connection, queries.inspect("applied_digests"), list(oids))
        applied = {}
        for row in rows:
            digest, _ = split_origin(row.get("digest", str))
            applied[row.get("role", int)] = row.get("holder", str), digest
    observed = await read_database(connection, oids, reach.creators, reach.touches, reach.has_columns)
    return observed, applied


async def read_passed_on(
    connection: Connection, asked: Collection[tuple[int, ObjectId]]
) -> dict[tuple[int, ObjectId], list[PassedOn]]:
    """Returns what each of these roles granted on the object beside it. Raises PgRoleError."""
    catalogs = {name: oid for oid, name in CATALOGS.items()}
    pairs = [(role, catalogs[one.catalog], one.oid) for role, one in asked]
    columns = [[pair[place] for pair in pairs] for place in range(3)]
    question = queries.privileges("passed_on", raw=has_raw_names(connection))
    found: dict[tuple[int, ObjectId], list[PassedOn]] = {}
    for row in await fetch_pages(connection, question, *columns):
        grantees = row.texts("grantees") + (("PUBLIC",) if row.get("to_public", bool) else ())
        place = row.get("role", int), ObjectId(CATALOGS[row.get("catalog", int)], row.get("oid", int))
        found.setdefault(place, []).append(PassedOn(row.get("privilege", str), row.text("column_name"), grantees))
    return found
