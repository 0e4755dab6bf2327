"""Claims in the home database: the rows of pgrole.claim, read and changed together with the roles.

If other roles can create schemas in the home database, they could replace schema pgrole with their own. Then every read
and every transaction first locks the schema and verifies its owner (`guarded`, sql/inspect/guard.sql).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pgrole_controller.core.ddl import literal, seen_name, statements
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import NewOwner, Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed
from pgrole_controller.postgres import catalog, queries
from pgrole_controller.postgres.claim_store import HeldClaims, HomeConnection, changes_role, limited_transaction
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row
from pgrole_controller.postgres.trusted_schema import trusting

_SOURCE = "claims_in_database"
_VERIFIERS = "verifiers_by_schema"


@dataclass(frozen=True, slots=True)
class DatabaseClaims:
    """`guarded`: see above. `has_current_schema`: not that of the previous version."""

    guarded: bool = False
    has_current_schema: bool = True

    async def read_roles(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        return catalog.parse_roles(await self._fetch(home, asked), asked, with_claims=True)

    async def are_unchanged(
        self,
        home: HomeConnection,
        asked: Sequence[tuple[Key, str]],
        before: Sequence[tuple[object, ...]],
    ) -> list[bool]:
        try:
            return catalog.equal_rows(await self._fetch(home, asked), before)
        except PgRoleError:
            if home.connection.is_closed():
                raise
            return [False] * len(asked)

    async def _fetch(self, home: HomeConnection, asked: Sequence[tuple[Key, str]]) -> list[Row]:
        query = queries.inspect_from("roles", claims=_SOURCE, verifiers=_VERIFIERS)
        async with trusting(home.connection, guarded=self.guarded):
            return await catalog.fetch_roles(home, query, asked)

    async def read_new_owners(self, home: HomeConnection, names: Collection[str]) -> dict[str, NewOwner]:
        query = queries.inspect_from("new_owners", claims=_SOURCE)
        async with trusting(home.connection, guarded=self.guarded):
            return await catalog.read_new_owners(home, query, names)

    async def read_verifiers(self, home: HomeConnection, oids: Sequence[int]) -> dict[int, Verifier]:
        async with trusting(home.connection, guarded=self.guarded):
            return await catalog.read_verifiers(home.connection, _VERIFIERS, oids)

    async def read_held(self, home: HomeConnection, after: str = "") -> HeldClaims:
        async with trusting(home.connection, guarded=self.guarded):
            return await catalog.read_claims(home.connection, home.cluster, after)

    async def read_namespace_roles(
        self, home: HomeConnection, namespaces: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], frozenset[int]]:
        async with trusting(home.connection, guarded=self.guarded):
            return await catalog.read_namespace_roles(home, namespaces)

    def opening(self) -> list[str]:
        guard = [queries.guard()] if self.guarded else []
        if self.has_current_schema:
            return [*guard, "SELECT pgrole.lock_changes()", "SELECT pgrole.check_not_suspended()"]
        return [*guard, "SELECT pgrole.take_turn()", queries.without_schema("check_not_suspended")]

    def statements(self, plan: Plan, *, options: bool, enforcing: bool) -> Iterator[str]:
        # first: it may be the same role, which this object had under another name
        for role_name, uid in plan.releases:
            yield _call("release_claim", role_name, uid)
        yield from _expectations(plan, enforcing=enforcing)
        yield from statements(plan.changes, options=options)
        yield from _claim_changes(plan)

    async def commit(self, connection: Connection, plans: Sequence[Plan], script: str) -> None:  # noqa: ARG002
        async with limited_transaction(connection):
            await connection.execute(script)


def _expectations(plan: Plan, *, enforcing: bool) -> Iterator[str]:
    holder = plan.claim.owner.object_uid if plan.claim else None
    if changes_role(plan):
        seen = f"{literal(plan.role_name)}, {seen_name(plan.seen_as)}, {literal(plan.oid)}"
        yield f"SELECT pgrole.expect({seen}, {literal(holder)})"
    if enforcing and plan.claim:
        known = plan.claim.generations
        yield _call(
            "expect_applied",
            plan.role_name,
            holder,
            plan.claim.applied,
            known.object,
            known.server_uid,
            known.server,
        )


def _claim_changes(plan: Plan) -> Iterator[str]:
    if plan.owner:
        owner = plan.owner
        yield _call(
            "take_claim",
            plan.role_name,
            plan.oid or 0,
            owner.cluster,
            owner.namespace,
            owner.namespace_uid,
            owner.object,
            owner.object_uid,
            plan.applied,
            plan.drift,
        )
    holder = plan.owner.object_uid if plan.owner else plan.claim.owner.object_uid if plan.claim else None
    if plan.record and holder:
        record = plan.record
        rotated_at = record.rotated_at.isoformat() if record.rotated_at else None
        yield _call(
            "keep_credential",
            plan.role_name,
            holder,
            record.source,
            record.digest,
            rotated_at,
            record.rotate,
            record.connection,
        )
    if plan.approval and holder:
        before = plan.claim.approve_handled if plan.claim else ""
        yield _call("keep_approval", plan.role_name, holder, before, plan.approval.value)
    if plan.acted_on and holder:
        known = plan.acted_on
        yield _call("act_on", plan.role_name, holder, known.object, known.server_uid, known.server)
    if plan.privileges is not None and holder:
        yield _call("keep_privileges", plan.role_name, holder, plan.privileges)
    if plan.forget and plan.claim:
        yield _call("forget_claim", plan.role_name, plan.claim.owner.object_uid)


def _call(function: str, *arguments: str | int | tuple[str, ...] | None) -> str:
    return f"SELECT pgrole.{function}({', '.join(literal(argument) for argument in arguments)})"
