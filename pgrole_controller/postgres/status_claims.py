"""Claims in the status of the objects, for a server without schema pgrole: a copy in memory.

Nothing in the database says who owns a role. After a start this is empty, and each object proves by its status that a
role is its own (`core.ownership`). What is applied then is recorded here, and from here in status.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from heapq import nsmallest
from operator import attrgetter

from pgrole_controller.core.claim import Claim, ClaimKey, Owner
from pgrole_controller.core.ddl import literal, seen_name, statements
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.plan import NewOwner, Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed
from pgrole_controller.postgres import catalog, queries
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.claim_store import (
    CLAIMS_PAGE,
    TRANSACTION_SECONDS,
    HeldClaim,
    HeldClaims,
    HomeConnection,
    changes_role,
    limited_transaction,
)
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import fetch

#: Ends the transaction of a paused process, so that the next leader does not find the roles locked for longer.
_ABANDONED = f"SET LOCAL idle_in_transaction_session_timeout = '{TRANSACTION_SECONDS:.0f}s'"
_OIDS = "SELECT r.rolname::text AS name, r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY ($1::name[])"


class StatusClaims:
    """Claims by role name. One instance for each server; it outlasts sessions."""

    has_current_schema = False

    def __init__(self) -> None:
        self._system_identifier = 0  # 0: no server yet
        self._claims: dict[str, Claim] = {}
        self._names: dict[Key, set[str]] = {}  # role names of the claims of one object
        self._holders: dict[int, str] = {}  # role oid: role name of the claim that holds it
        self._attempts: dict[str, Plan] = {}  # by role name: sent, result unknown

    def open(self, system_identifier: int) -> "StatusClaims":
        """Prepares for a session with this server; discards the claims of another one, which say nothing about it."""
        if system_identifier != self._system_identifier:
            self.clear()
            self._system_identifier = system_identifier
        return self

    def clear(self) -> None:
        """Discards all claims, e.g. for a session with schema pgrole, whose claims are newer."""
        self._system_identifier = 0
        for memory in (self._claims, self._names, self._holders, self._attempts):
            memory.clear()

    async def read_roles(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        query = queries.inspect_from("roles", claims="claims_in_status", verifiers=_verifier_source(home.identity))
        rows = await catalog.fetch_roles(
            home,
            query,
            asked,
            *self._columns(role_name for _, role_name in asked),
        )
        return [
            self._add_claim(key, role_name, observed) if isinstance(observed, Observed) else observed
            for (key, role_name), observed in zip(
                asked, catalog.parse_roles(rows, asked, with_claims=False), strict=True
            )
        ]

    async def are_unchanged(
        self,
        home: HomeConnection,  # noqa: ARG002
        asked: Sequence[tuple[Key, str]],
        before: Sequence[tuple[object, ...]],  # noqa: ARG002
    ) -> list[bool]:
        return [False] * len(asked)  # the rows hold no claims to compare

    async def read_new_owners(self, home: HomeConnection, names: Collection[str]) -> dict[str, NewOwner]:
        query = queries.inspect_from("new_owners", claims="no_claims")
        found = await catalog.read_new_owners(home, query, names)
        return {name: NewOwner(role.oid, _place(self.holder(role.oid))) for name, role in found.items()}

    async def read_verifiers(self, home: HomeConnection, oids: Sequence[int]) -> dict[int, Verifier]:
        return await catalog.read_verifiers(home.connection, _verifier_source(home.identity), oids)

    async def read_held(self, home: HomeConnection, after: str = "") -> HeldClaims:  # noqa: ARG002
        some = nsmallest(
            CLAIMS_PAGE, (one for one in self.held() if one.role_name > after), key=attrgetter("role_name")
        )
        return HeldClaims(some, some[-1].role_name if len(some) == CLAIMS_PAGE else None)

    async def read_namespace_roles(
        self,
        home: HomeConnection,
        namespaces: Sequence[tuple[str, str]],
    ) -> dict[tuple[str, str], frozenset[int]]:
        roles: dict[tuple[str, str], set[int]] = {place: set() for place in namespaces}
        for claim in self._claims.values():
            owner = claim.owner
            some = roles.get((owner.namespace, owner.namespace_uid))
            if some is not None and owner.cluster == home.cluster and claim.role_oid and not claim.released:
                some.add(claim.role_oid)
        return {place: frozenset(some) for place, some in roles.items()}

    def opening(self) -> list[str]:
        return [_ABANDONED, queries.without_schema("lock_changes"), queries.without_schema("check_not_suspended")]

    def statements(self, plan: Plan, *, options: bool, enforcing: bool) -> Iterator[str]:  # noqa: ARG002
        if not changes_role(plan):
            return
        oid = "" if plan.oid is None else str(plan.oid)
        for name, value in (("seen_as", seen_name(plan.seen_as)), ("seen_oid", literal(oid))):
            yield f"SELECT pg_catalog.set_config('pgrole.{name}', {value}, true)"
        yield queries.without_schema("expect")
        yield from statements(plan.changes, options=options)

    async def commit(self, connection: Connection, plans: Sequence[Plan], script: str) -> None:
        """The claims change with the transaction: when it is committed, and by nothing in between."""
        for plan in plans:
            self._check(plan)
        created: dict[str, int] = {}
        if any(changes_role(plan) for plan in plans):
            new = [plan.role_name for plan in plans if plan.owner and plan.oid is None]
            try:
                async with limited_transaction(connection), connection.transaction():
                    await connection.execute(script)
                    rows = await fetch(connection, _OIDS, new) if new else []
                    created = {row.get("name", str): row.get("oid", int) for row in rows}
            except PgRoleError as error:
                if connection.is_closed() or isinstance(error.__cause__, TimeoutError):
                    self.attempted(plans)
                raise
        self.record(plans, created)

    def get(self, role_name: str) -> Claim | None:
        return self._claims.get(role_name)

    def holder(self, oid: int) -> Claim | None:
        """The claim on the role with this oid, under any name, if it is not released."""
        claim = self._claims.get(self._holders.get(oid, ""))
        return None if claim is None or claim.released else claim

    def find_others(self, key: Key, role_name: str) -> tuple[ClaimKey, ...]:
        """The object's claims on other role names."""
        claims = [self._claims[name] for name in sorted(self._names.get(key, ())) if name != role_name]
        return tuple(ClaimKey(claim.role_name, claim.owner.object_uid) for claim in claims if not claim.released)

    def held(self) -> list[HeldClaim]:
        """The claims that are not released."""
        return [
            HeldClaim(_key(claim.owner), claim.role_name, claim.owner.object_uid)
            for claim in self._claims.values()
            if not claim.released
        ]

    def _columns(self, role_names: Iterable[str]) -> tuple[list[str], list[int], list[bool]]:
        """The claims on these roles as the columns of sql/sources/claims_in_status.sql: names, oids, released."""
        claims = [self._claims[name] for name in dict.fromkeys(role_names) if name in self._claims]
        return (
            [claim.role_name for claim in claims],
            [claim.role_oid for claim in claims],
            [claim.released for claim in claims],
        )

    def _add_claim(self, key: Key, role_name: str, observed: Observed) -> Observed:
        """Adds what the table of claims would have said."""
        self.confirm(role_name, observed.named.oid if observed.named else None)
        return replace(
            observed,
            claim=self.get(role_name),
            other_claims=self.find_others(key, role_name),
            named=self._add_holder(role_name, observed.named),
            claimed=self._add_holder(role_name, observed.claimed),
        )

    def _add_holder(self, role_name: str, found: ObservedRole | None) -> ObservedRole | None:
        holder = self.holder(found.oid) if found else None
        if found is None or holder is None or holder.role_name == role_name:
            return found
        return replace(found, owner_elsewhere=str(holder.owner))

    def _check(self, plan: Plan) -> None:
        """Raises Transient if another plan has changed the claim since this one was made."""
        held = self._claims.get(plan.role_name)
        if not changes_role(plan) or held is None:
            return
        if plan.claim is None or held.owner.object_uid != plan.claim.owner.object_uid:
            raise Transient(
                Reason.PROGRESSING, f'the claim on role "{plan.role_name}" changed since the controller read it'
            )

    def attempted(self, plans: Sequence[Plan]) -> None:
        """The connection ended before PostgreSQL reported whether it committed these plans."""
        for plan in plans:
            if plan.owner is not None and plan.oid is None:
                self._attempts[plan.role_name] = plan

    def confirm(self, role_name: str, oid: int | None) -> None:
        """The role was read. If it did not exist before an attempt to create it, that attempt was committed."""
        plan = self._attempts.pop(role_name, None)
        if plan is not None and oid is not None and role_name not in self._claims:
            self._take(plan, oid)

    def record(self, plans: Sequence[Plan], created: Mapping[str, int]) -> None:
        """These plans were committed; `created`: the oids of the new roles, by name."""
        for plan in plans:
            for role_name, uid in plan.releases:
                self._release(role_name, uid)
            if plan.owner is not None and (oid := plan.oid or created.get(plan.role_name)) is not None:
                self._take(plan, oid)
            if plan.record is not None and (claim := self._claims.get(plan.role_name)) is not None:
                self._put(replace(claim, record=plan.record))
            if plan.approval is not None and (claim := self._claims.get(plan.role_name)) is not None:
                self._put(replace(claim, approve_handled=plan.approval.value))
            if plan.forget:
                self._remove(plan.role_name)

    def _take(self, plan: Plan, oid: int) -> None:
        """As pgrole.take_claim does."""
        if plan.owner is None:
            raise AssertionError("a claim has an owner")
        before = plan.claim
        ours = before is not None and _identity(before.owner) == _identity(plan.owner)
        record = before.record if before else PasswordRecord()
        claim = Claim(
            role_name=plan.role_name,
            role_oid=oid,
            system_identifier=self._system_identifier,
            owner=plan.owner,
            applied=plan.applied,
            drift_count=(before.drift_count if before and ours else 0) + bool(plan.drift),
            last_drift_at=before.last_drift_at if before and ours else None,
            last_drift_fields=before.last_drift_fields if before and ours else (),
            # the sources of another object's password and Secret are not this object's
            record=record if ours else replace(record, source="", connection=""),
            approve_handled=before.approve_handled if before and ours else "",
            counted=before.counted if before and ours else 0,
        )
        if plan.drift:
            claim = replace(claim, last_drift_at=datetime.now(UTC), last_drift_fields=plan.drift)
        holder = self._holders.get(oid)
        if holder is not None and holder != plan.role_name:  # PostgreSQL reuses oids
            self._put(replace(self._claims[holder], role_oid=0))
        self._put(claim)

    def _release(self, role_name: str, uid: str) -> None:
        claim = self._claims.get(role_name)
        if claim is not None and claim.owner.object_uid == uid:
            self._put(replace(claim, released=True))

    def _put(self, claim: Claim) -> None:
        self._remove(claim.role_name)
        self._claims[claim.role_name] = claim
        self._names.setdefault(_key(claim.owner), set()).add(claim.role_name)
        if claim.role_oid:
            self._holders[claim.role_oid] = claim.role_name

    def _remove(self, role_name: str) -> None:
        claim = self._claims.pop(role_name, None)
        if claim is None:
            return
        key = _key(claim.owner)
        self._names[key].discard(role_name)
        if not self._names[key]:
            del self._names[key]
        if self._holders.get(claim.role_oid) == role_name:
            del self._holders[claim.role_oid]


def _key(owner: Owner) -> Key:
    return Key(owner.namespace, owner.object)


def _identity(owner: Owner) -> tuple[str, str]:
    return owner.cluster, owner.object_uid


def _place(holder: Claim | None) -> tuple[str, str, str] | None:
    if holder is None:
        return None
    return holder.owner.cluster, holder.owner.namespace, holder.owner.namespace_uid


def _verifier_source(identity: Identity) -> str:
    return queries.verifier_source(readable=identity.sees_passwords)
