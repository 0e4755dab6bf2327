"""Reads the catalogs of a server: the roles and claims of any number of objects in one query.

A row that cannot be read is an error of its own object only.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from pgrole_controller.core.claim import Claim, ClaimKey, Generations, Owner
from pgrole_controller.core.contest import Suspect
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.parameters import Parameters, hidden_contexts, read_settings
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.plan import NewOwner
from pgrole_controller.core.policy import Reached, References
from pgrole_controller.core.privileges.kept_privileges import LARGEST, KeptPrivileges, read_kept
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import UNSEEN, Grant, Membership, ObservedRole, Password, Role, membership_of
from pgrole_controller.core.scram import LEAST_ITERATIONS, Verifier
from pgrole_controller.core.state import Dependents, Observed
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.claim_store import CLAIMS_PAGE, HeldClaim, HeldClaims, HomeConnection
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Deferred, Row, Unreadable, fetch

log = logging.getLogger(__name__)


#: Since this version, memberships have INHERIT and SET, and several grantors can grant one.
MEMBERSHIP_OPTIONS_VERSION = 160_000

#: The limits in sql/inspect/roles.sql and sql/inspect/references.sql: a list of this length may be incomplete.
_MOST_GRANTS = 1000
_MOST_REACHED = 200

#: Columns of sql/inspect/roles.sql that do not describe the role.
_PASSING = frozenset({"place", "at"})

#: Privileges in a claim that take more bytes than this are read alone: sql/inspect/roles.sql.
LONG_PRIVILEGES = 16384

#: More than an object can declare.
_MANY_GROUPS = 100


@dataclass(frozen=True, slots=True)
class ReferencedNames:
    """The names that one object refers to, and the patterns of protected roles that it must not reach."""

    groups: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    databases: frozenset[str] = frozenset()
    protected: frozenset[str] = frozenset()

    def __or__(self, other: "ReferencedNames") -> "ReferencedNames":
        return ReferencedNames(
            self.groups | other.groups,
            self.parameters | other.parameters,
            self.databases | other.databases,
            self.protected | other.protected,
        )


async def fetch_roles(home: HomeConnection, query: str, asked: Sequence[tuple[Key, str]], *claims: object) -> list[Row]:
    """The rows of sql/inspect/roles.sql for each (key, role name). `claims`: arguments of its source of claims."""
    return await fetch(
        home.connection,
        query,
        [name for _, name in asked],
        [key.namespace for key, _ in asked],
        [key.name for key, _ in asked],
        home.cluster,
        home.identity.system_identifier,
        *claims,
        label="read_roles",
    )


def equal_rows(rows: Sequence[Row], before: Sequence[tuple[object, ...]]) -> list[bool]:
    """Whether there is exactly one row for each place, with the content of `before` (`Observed.row`)."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(row["place"], []).append(row)
    return [
        len(some := found.get(place, [])) == 1 and some[0].content(_PASSING) == content
        for place, content in enumerate(before, 1)
    ]


async def read_references(connection: Connection, referenced: ReferencedNames, version: int) -> References:
    """The referenced roles, parameters and databases that exist. `version`: the server's, e.g. 180004.

    Raises PgRoleError.
    """
    rows = await fetch(
        connection,
        queries.inspect("references"),
        list(referenced.groups),
        list(referenced.parameters),
        list(referenced.databases),
        [_like(pattern) for pattern in referenced.protected],
        label="read_references",
    )
    found: dict[str, list[Row]] = {"role": [], "parameter": [], "module": [], "database": []}
    for row in rows:
        kind = row.get("kind", str)
        if kind not in found:
            raise row.wrong("kind")
        found[kind].append(row)
    reached = {row.get("name", str): row.objects("reached") for row in found["role"]}
    return References(
        groups={name: tuple(_hard(some)) for name, some in reached.items()},
        reached={
            name: tuple(Reached(one.get("name", str), one.some("powers", str)) for one in some)
            for name, some in reached.items()
        },
        contexts=hidden_contexts(referenced.parameters, version)
        | {row.get("name", str): row.get("context", str) for row in found["parameter"]},
        databases=frozenset(row.get("name", str) for row in found["database"]),
        templates=frozenset(row.get("name", str) for row in found["database"] if row.find("context", str) is not None),
        modules=frozenset(row.get("name", str) for row in found["module"]),
        options=version >= MEMBERSHIP_OPTIONS_VERSION,
    )


def _hard(reached: Sequence[Row]) -> Iterable[str]:
    yield from (one.get("name", str) for one in reached if one.get("hard", bool))
    if len(reached) >= _MOST_REACHED:  # the list may be incomplete
        yield "more roles than the controller can read"


def _like(pattern: str) -> bytes:
    """A LIKE pattern that matches at least the same names: in bytes, `?` cannot stand for one character."""
    for letter in "\\%_":
        pattern = pattern.replace(letter, "\\" + letter)
    return pattern.replace("*", "%").replace("?", "%").encode()


async def read_dependents(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[Dependents, ...]]:
    """What depends on each of these roles, by oid; roles without dependents are left out. Raises PgRoleError."""
    dependents: dict[int, tuple[Dependents, ...]] = {}
    for row in await fetch(connection, queries.inspect("dependents"), list(oids), label="read_dependents"):
        role = row.get("role", int)
        counts = (row.get(name, int) for name in ("count", "members", "others"))
        dependent = Dependents(row.get("database", str), *counts)
        dependents[role] = (*dependents.get(role, ()), dependent)
    return dependents


async def count_sessions(connection: Connection, oids: Sequence[int]) -> dict[int, int]:
    """The number of open sessions by role oid; roles without sessions are left out. Raises PgRoleError."""
    rows = await fetch(connection, queries.inspect("sessions"), list(oids), label="read_sessions")
    return {row.get("role", int): row.get("count", int) for row in rows}


async def read_new_owners(home: HomeConnection, query: str, names: Collection[str]) -> dict[str, NewOwner]:
    """The existing roles among these names, each with the object that claims it in the rows."""
    rows = await fetch(home.connection, query, list(names), home.identity.system_identifier, label="read_new_owners")
    return {row.get("name", str): NewOwner(row.get("oid", int), _claimed_place(row)) for row in rows}


def _claimed_place(row: Row) -> tuple[str, str, str] | None:
    cluster = row.find("cluster", str)
    return None if cluster is None else (cluster, row.get("namespace", str), row.get("namespace_uid", str))


async def read_verifiers(connection: Connection, source: str, oids: Sequence[int]) -> dict[int, Verifier]:
    """Password verifiers by role oid, from a source in sql/sources."""
    query = queries.inspect_from("verifiers", verifiers=source)
    rows = await fetch(connection, query, list(oids), label="read_verifiers")
    found = {row.get("role", int): row.find("verifier", str) for row in rows}
    return {role: Verifier(verifier) for role, verifier in found.items() if verifier is not None}


async def read_claims(connection: Connection, cluster: str, after: str) -> HeldClaims:
    """As `ClaimStore.read_held`. Claims that cannot be read are left out, and stay unchanged."""
    claims: list[HeldClaim] = []
    rows = await fetch(connection, queries.inspect("claims"), cluster, after, CLAIMS_PAGE, label="read_claims")
    for row in rows:
        try:
            key = Key(row.get("namespace", str), row.get("object", str))
            claims.append(HeldClaim(key, row.get("role_name", str), row.get("object_uid", str)))
        except PgRoleError as error:
            log.warning("claim left unchanged: not readable", extra={"error": error.message})
    is_last = len(rows) < CLAIMS_PAGE or not claims
    return HeldClaims(claims, None if is_last else claims[-1].role_name)


async def read_namespace_roles(
    home: HomeConnection, namespaces: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], frozenset[int]]:
    """Oids of the roles that each namespace (name, uid) claims on this server."""
    rows = await fetch(
        home.connection,
        queries.inspect("namespace_roles"),
        [name for name, _ in namespaces],
        [uid for _, uid in namespaces],
        home.cluster,
        home.identity.system_identifier,
        label="read_namespace_roles",
    )
    return {namespaces[row.get("place", int) - 1]: frozenset(row.some("roles", int)) for row in rows}


def parse_roles(
    rows: Sequence[Row], asked: Sequence[tuple[Key, str]], *, with_claims: bool
) -> list[Observed | PgRoleError]:
    """One result for each (key, role name), in order. `with_claims`: the rows hold the claims."""
    found: dict[int, list[Row]] = {place: [] for place in range(1, len(asked) + 1)}
    for row in rows:
        try:
            found.get(row.get("place", int), []).append(row)
        except PgRoleError as error:
            log.warning("row skipped: it belongs to no object", extra={"error": error.message})
    return [_observed_or_error(found[place], key, with_claims=with_claims) for place, (key, _) in enumerate(asked, 1)]


def _observed_or_error(rows: Sequence[Row], key: Key, *, with_claims: bool) -> Observed | PgRoleError:
    try:
        return _observed(rows, with_claims=with_claims)
    except Deferred as error:
        return error
    except PgRoleError as error:
        log.warning("object not readable", extra={"object": str(key), "error": error.message})
        return error


def _observed(rows: Sequence[Row], *, with_claims: bool) -> Observed:
    """`with_claims`: the rows hold the claims."""
    existing = [row for row in rows if row.find("oid", int) is not None]
    named = [row for row in existing if row.get("is_named", bool)]
    claimed = [row for row in existing if row not in named]
    if not rows or len(rows) > 2 or len(named) > 1 or len(claimed) > 1 or (len(rows) > 1 and len(existing) < 2):
        raise Unreadable(f"{len(rows)} rows of one role", Reason.DATABASE_ERROR)
    first = rows[0]
    return Observed(
        named=_found(named[0]) if named else None,
        claimed=_found(claimed[0]) if claimed else None,
        claim=_claim(first) if with_claims else None,
        other_claims=_other_claims(first) if with_claims else (),
        at=first.get("at", datetime),
        iterations=first.find("scram_iterations", int) or LEAST_ITERATIONS,  # fixed before PostgreSQL 16
        row=first.content(_PASSING) if len(rows) == 1 else (),
    )


def _other_claims(row: Row) -> tuple[ClaimKey, ...]:
    pairs = row.some("former", list)
    if any(len(pair) != 2 or not all(type(text) is str for text in pair) for pair in pairs):
        raise row.wrong("former")
    return tuple(ClaimKey(name, uid) for name, uid in pairs)


def _found(row: Row) -> ObservedRole:
    if row.get("put_off", bool):
        raise Deferred
    settings = _settings(row)
    role = Role(
        name=row.text("name"),
        login=row.get("login", bool),
        superuser=row.get("superuser", bool),
        createdb=row.get("createdb", bool),
        createrole=row.get("createrole", bool),
        inherit=row.get("inherit", bool),
        replication=row.get("replication", bool),
        bypassrls=row.get("bypassrls", bool),
        connection_limit=row.get("connection_limit", int),
        valid_until=row.find("valid_until", int),
        comment=row.find_text("comment"),
        password=_password(row),
        member_of=_memberships(row),
        parameters=settings.pop("", ()),
        database_parameters=tuple(sorted(settings.items())),
    )
    cut = len(row.objects("member_of")) >= _MOST_GRANTS
    return ObservedRole(
        row.get("oid", int), role, row.texts("reaches"), owner_elsewhere=row.find("held_by", str), cut=cut
    )


def _settings(row: Row) -> dict[str, Parameters]:
    """By database; '' for settings in all databases."""
    held = row.object("settings")
    for some in held.values():
        if some is not None and (type(some) is not list or any(type(text) is not str for text in some)):
            raise row.wrong("settings")
    return {database: read_settings(some) for database, some in held.items()}


def _password(row: Row) -> Password | None:
    if not row.get("sees_password", bool):
        return UNSEEN
    digest = row.find("password", str)
    return None if digest is None else Password(digest)


def _memberships(row: Row) -> tuple[Membership, ...]:
    """One membership for each group, in the order of the rows, which are sorted by group."""
    held = [(grant.get("role", str), grant) for grant in row.objects("member_of")]
    groups = [(name, [grant for _, grant in some]) for name, some in groupby(held, key=itemgetter(0))]
    if len(held) >= _MOST_GRANTS:
        # The last group may be incomplete. With this many groups, the others are drift and are revoked first.
        groups = groups[:-1]
        if len(groups) < _MANY_GROUPS:
            text = f"the role has {_MOST_GRANTS} or more grants of memberships: revoke some of them"
            raise Transient(Reason.DATABASE_ERROR, f"the controller cannot read the role: {text}")
    return tuple(
        membership_of(group, [_grant(grant) for grant in grants], grants[0].some("passed_on", str))
        for group, grants in groups
    )


def _grant(grant: Row) -> Grant:
    options = (grant.get(name, bool) for name in ("admin", "inherit", "set", "by_creation"))
    return Grant(grant.get("grantor", str), *options)


def _claim(row: Row) -> Claim | None:
    role_name = row.find("claim_role_name", str)
    if role_name is None:
        return None
    owner = Owner(
        cluster=row.get("claim_cluster", str),
        namespace=row.get("claim_namespace", str),
        namespace_uid=row.get("claim_namespace_uid", str),
        object=row.get("claim_object", str),
        object_uid=row.get("claim_object_uid", str),
    )
    return Claim(
        role_name=role_name,
        role_oid=row.get("claim_role_oid", int),
        system_identifier=row.get("claim_system_identifier", int),
        owner=owner,
        applied=row.get("claim_applied", str),
        drift_count=row.get("claim_drift_count", int),
        last_drift_at=row.find("claim_last_drift_at", datetime),
        last_drift_fields=row.some("claim_last_drift_fields", str),
        released=row.get("claim_released", bool),
        record=PasswordRecord(
            source=row.get("claim_password_source", str),
            digest=row.get("claim_password_digest", str),
            rotated_at=row.find("claim_rotated_at", datetime),
            rotate=row.get("claim_rotate_handled", str),
            connection=row.get("claim_connection_secret", str),
        ),
        generations=Generations(
            row.find("claim_object_generation", int) or 0,
            row.find("claim_server_uid", str) or "",
            row.find("claim_server_generation", int) or 0,
        ),
        privileges=_privileges(row),
        approve_handled=row.find("claim_approve_handled", str) or "",
    )


def _privileges(row: Row) -> KeptPrivileges:
    """What the claim holds; nothing before version 4 of the schema."""
    size, text = row.find("claim_privileges_bytes", int) or 0, row.find("claim_privileges", str)
    if text is None and LONG_PRIVILEGES < size <= LARGEST:
        raise Deferred
    if text is None and size:
        raise Transient(
            Reason.DATABASE_ERROR,
            f"the privileges in the claim on the role take {size} bytes, more than the controller ever writes: an "
            f"administrator must set column privileges of its row in pgrole.claim to ''",
        )
    return read_kept(text or "")


_SUSPECTS_SECONDS = 2.0


async def read_suspects(connection: Connection, role_names: Sequence[str]) -> dict[str, tuple[Suspect, ...]]:
    """Sessions that may have changed the role, by role name; roles without suspects are left out.

    Raises PgRoleError only if the connection is lost.
    """
    try:
        query = queries.inspect("suspects")
        rows = await fetch(connection, query, list(role_names), label="read_suspects", seconds=_SUSPECTS_SECONDS)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        log.warning("cannot read which sessions revert repairs", extra={"error": error.message})
        return {}
    suspects: dict[str, tuple[Suspect, ...]] = {}
    for row in rows:
        try:
            role, user = row.get("role", str), row.get("usename", bytes).decode(errors="replace")
            seen = Suspect(user, row.find("application_name", str) or "", row.get("address", str))
        except PgRoleError as error:
            log.warning("cannot read a session that reverts repairs", extra={"error": error.message})
            continue
        suspects[role] = (*suspects.get(role, ()), seen)
    return suspects
