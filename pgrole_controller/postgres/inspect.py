"""What is there: the server, and the roles and claims of any number of objects in one query."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import asyncpg

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.credential import Record
from pgrole_controller.core.disown import Heir
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.core.membership import Grant, Membership, membership_of
from pgrole_controller.core.parameters import read_settings
from pgrole_controller.core.policy import Reached, Surroundings
from pgrole_controller.core.role import UNSEEN, Found, Password, Role
from pgrole_controller.core.scram import LEAST_ITERATIONS, Verifier
from pgrole_controller.core.sight import Needs, Sight
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking
from pgrole_controller.postgres.ledger import Ledger

OLDEST_VERSION = 14

#: From here on memberships have INHERIT and SET, and can be granted by several grantors.
MEMBERSHIP_OPTIONS_VERSION = 160_000


@dataclass(frozen=True, slots=True)
class Identity:
    """What server a connection is on; `system_identifier` and `started_at` together tell one live server."""

    version: str
    version_number: int  # e.g. 180004
    system_identifier: int
    started_at: datetime
    own_roles: frozenset[str]
    superuser: bool
    sees_passwords: bool

    def is_same_server(self, other: "Identity") -> bool:
        return (self.system_identifier, self.started_at) == (other.system_identifier, other.started_at)


async def identify(connection: Connection) -> Identity:
    """Raises Transient for a server that cannot be written to or is too old."""
    with speaking("identify"):
        row = await connection.fetchrow(queries.inspect("server"))
    if row is None:
        raise Transient(Reason.SERVER_NOT_READY, "the server says nothing of itself")
    if row["in_recovery"]:
        raise Transient(Reason.SERVER_NOT_READY, "the server is a standby (pg_is_in_recovery): it cannot be written to")
    if row["version_number"] < OLDEST_VERSION * 10_000:
        raise Transient(
            Reason.SERVER_NOT_READY, f"PostgreSQL {row['version']} is too old: {OLDEST_VERSION} or later is needed"
        )
    if row["encoding"] != "UTF8":
        raise Transient(
            Reason.SERVER_NOT_READY,
            f"the home database has the encoding {row['encoding']}: name one with UTF8, which holds every role's name",
        )
    return Identity(
        version=row["version"],
        version_number=row["version_number"],
        system_identifier=row["system_identifier"],
        started_at=row["started_at"],
        own_roles=frozenset({_text(row["acting_role"]) or "", _text(row["session_role"]) or ""}),
        superuser=row["superuser"],
        sees_passwords=row["sees_passwords"],
    )


async def look(
    connection: Connection, cluster: str, system_identifier: int, asked: Sequence[tuple[Key, str]]
) -> list[Sight]:
    """What is there for each (key, role name), in their order; the role name is empty where the object is gone.

    What they refer to is not in it: `look_around`.
    """
    with speaking("look"):
        rows = await connection.fetch(
            queries.inspect("roles"),
            [name for _, name in asked],
            [key.namespace for key, _ in asked],
            [key.name for key, _ in asked],
            cluster,
            system_identifier,
        )
    return [_sight(list(group)) for _, group in groupby(rows, key=itemgetter("place"))]


async def look_without_schema(
    connection: Connection, identity: Identity, cluster: str, ledger: Ledger, asked: Sequence[tuple[Key, str]]
) -> list[Sight]:
    """The same where there is no schema pgrole: by the claims that are remembered."""
    with speaking("look"):
        rows = await connection.fetch(
            queries.inspect_schemaless("roles", verifiers=identity.sees_passwords),
            [name for _, name in asked],
            [key.namespace for key, _ in asked],
            [key.name for key, _ in asked],
            cluster,
            identity.system_identifier,
            *ledger.relevant(name for _, name in asked),
        )
    sights = [_sight(list(group)) for _, group in groupby(rows, key=itemgetter("place"))]
    return [_remember(ledger, key, name, sight) for (key, name), sight in zip(asked, sights, strict=True)]


def _remember(ledger: Ledger, key: Key, role_name: str, sight: Sight) -> Sight:
    """What the table of claims would have told."""
    ledger.seen(role_name, sight.named.oid if sight.named else None)
    return replace(
        sight,
        claim=ledger.get(role_name),
        former=ledger.former(key, role_name),
        named=_hold(ledger, role_name, sight.named),
        claimed=_hold(ledger, role_name, sight.claimed),
    )


def _hold(ledger: Ledger, role_name: str, found: Found | None) -> Found | None:
    holder = ledger.holder(found.oid) if found else None
    if found is None or holder is None or holder.role_name == role_name:
        return found
    return replace(found, held_by=str(holder.owner))


async def look_around(
    connection: Connection,
    groups: Collection[str],
    parameters: Collection[str],
    databases: Collection[str],
    version: int,
) -> Surroundings:
    """What is there of these; `version` is the server's version number."""
    with speaking("look_around"):
        rows = await connection.fetch(queries.inspect("surroundings"), list(groups), list(parameters), list(databases))
    reached = {row["name"]: json.loads(_text(row["reached"]) or "[]") for row in rows if row["kind"] == "role"}
    return Surroundings(
        groups={name: tuple(one["name"] for one in some if one["hard"]) for name, some in reached.items()},
        reached={
            name: tuple(Reached(one["name"], tuple(one["powers"])) for one in some) for name, some in reached.items()
        },
        contexts={row["name"]: row["context"] for row in rows if row["kind"] == "parameter"},
        databases=frozenset(row["name"] for row in rows if row["kind"] == "database"),
        modules=frozenset(row["name"] for row in rows if row["kind"] == "module"),
        options=version >= MEMBERSHIP_OPTIONS_VERSION,
    )


async def look_for_needs(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[Needs, ...]]:
    """What still needs each of these roles; a role that nothing needs is not in the result."""
    with speaking("look_for_needs"):
        rows = await connection.fetch(queries.inspect("needs"), list(oids))
    needs: dict[int, tuple[Needs, ...]] = {}
    for row in rows:
        needs[row["role"]] = (*needs.get(row["role"], ()), Needs(row["database"], row["count"], row["members"]))
    return needs


async def look_for_sessions(connection: Connection, oids: Sequence[int]) -> dict[int, int]:
    """How many sessions each of these roles has; one without any is not in the result."""
    with speaking("look_for_sessions"):
        rows = await connection.fetch(queries.inspect("sessions"), list(oids))
    return {row["role"]: row["count"] for row in rows}


async def look_for_heirs(connection: Connection, names: Collection[str], system_identifier: int) -> dict[str, Heir]:
    """Those of these roles that are there."""
    with speaking("look_for_heirs"):
        rows = await connection.fetch(queries.inspect("heirs"), list(names), system_identifier)
    return {
        row["name"]: Heir(row["oid"], row["cluster"] and (row["cluster"], row["namespace"], row["namespace_uid"]))
        for row in rows
    }


async def look_for_heirs_without_schema(
    connection: Connection, names: Collection[str], system_identifier: int, ledger: Ledger
) -> dict[str, Heir]:
    with speaking("look_for_heirs"):
        query = queries.inspect_schemaless("heirs", verifiers=False)
        rows = await connection.fetch(query, list(names), system_identifier)
    return {row["name"]: Heir(row["oid"], _place(ledger.holder(row["oid"]))) for row in rows}


def _place(holder: Claim | None) -> tuple[str, str, str] | None:
    if holder is None:
        return None
    return holder.owner.cluster, holder.owner.namespace, holder.owner.namespace_uid


async def look_for_verifiers(
    connection: Connection, oids: Sequence[int], *, identity: Identity | None = None
) -> dict[int, Verifier]:
    """What these roles log in with; one without a password, or whose may not be read, is not in the result.

    `identity` where there is no schema pgrole.
    """
    query = (
        queries.inspect_schemaless("verifiers", verifiers=identity.sees_passwords)
        if identity
        else queries.inspect("verifiers")
    )
    with speaking("look_for_verifiers"):
        rows = await connection.fetch(query, list(oids))
    return {row["role"]: Verifier(row["verifier"]) for row in rows if row["verifier"] is not None}


async def look_for_claims(connection: Connection, cluster: str) -> list[tuple[Key, str, str]]:
    """The claims of this cluster that are not released: key of the object, name of the role, uid of the object."""
    with speaking("look_for_claims"):
        rows = await connection.fetch(queries.inspect("claims"), cluster)
    return [(Key(row["namespace"], row["object"]), row["role_name"], row["object_uid"]) for row in rows]


def _sight(rows: Sequence[asyncpg.Record]) -> Sight:
    found = {bool(row["is_named"]): _found(row) for row in rows if row["oid"] is not None}
    return Sight(
        named=found.get(True),
        claimed=found.get(False),
        claim=_claim(rows[0]),
        former=tuple((name, uid) for name, uid in rows[0]["former"]),
        at=rows[0]["at"],
        iterations=rows[0]["scram_iterations"] or LEAST_ITERATIONS,  # PostgreSQL 15 and before know no other
    )


def _found(row: asyncpg.Record) -> Found:
    settings = {name: read_settings(some) for name, some in json.loads(_text(row["settings"]) or "{}").items()}
    role = Role(
        name=_text(row["name"]) or "",
        login=row["login"],
        superuser=row["superuser"],
        createdb=row["createdb"],
        createrole=row["createrole"],
        inherit=row["inherit"],
        replication=row["replication"],
        bypassrls=row["bypassrls"],
        connection_limit=row["connection_limit"],
        valid_until=row["valid_until"],
        comment=_text(row["comment"]),
        password=_password(row),
        member_of=_memberships(json.loads(_text(row["member_of"]) or "[]")),
        parameters=settings.pop("", ()),
        database_parameters=tuple(sorted(settings.items())),
    )
    reaches = tuple(_text(name) or "" for name in row["reaches"] or ())
    return Found(row["oid"], role, reaches, held_by=row["held_by"])


def _password(row: asyncpg.Record) -> Password | None:
    if not row["sees_password"]:
        return UNSEEN
    return None if row["password"] is None else Password(row["password"])


def _text(value: bytes | None) -> str | None:
    # What is not UTF-8 stays distinct and equals nothing that can be declared.
    return None if value is None else value.decode(errors="surrogateescape")


def _memberships(rows: Sequence[dict[str, Any]]) -> tuple[Membership, ...]:
    """One for each group, sorted by it; the rows come in that order."""
    return tuple(
        membership_of(group, [_grant(row) for row in grants], grants[0]["passed_on"] or ())
        for group, grants in ((name, list(some)) for name, some in groupby(rows, key=itemgetter("role")))
    )


def _grant(row: dict[str, Any]) -> Grant:
    return Grant(row["grantor"], row["admin"], row["inherit"], row["set"], row["by_creation"])


def _claim(row: asyncpg.Record) -> Claim | None:
    if row["claim_role_name"] is None:
        return None
    owner = Owner(
        cluster=row["claim_cluster"],
        namespace=row["claim_namespace"],
        namespace_uid=row["claim_namespace_uid"],
        object=row["claim_object"],
        object_uid=row["claim_object_uid"],
    )
    return Claim(
        role_name=row["claim_role_name"],
        role_oid=row["claim_role_oid"],
        system_identifier=row["claim_system_identifier"],
        owner=owner,
        applied=row["claim_applied"],
        drift_count=row["claim_drift_count"],
        last_drift_at=row["claim_last_drift_at"],
        last_drift_fields=tuple(row["claim_last_drift_fields"] or ()),
        released=row["claim_released"],
        record=Record(
            source=row["claim_password_source"],
            digest=row["claim_password_digest"],
            rotated_at=row["claim_rotated_at"],
            rotate=row["claim_rotate_handled"],
            connection=row["claim_connection_secret"],
        ),
    )
