"""Plans privileges: what the controller would grant and revoke in each database. Also reads what roles to be adopted
hold there. Each database is read in one READ ONLY transaction, and the decisions are the controller's.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.commands.plan_cascades import GrantOptions, find_cascades, find_options
from pgrole_controller.commands.plan_model import PlannedChange, PlannedSql, Sign
from pgrole_controller.commands.plan_restoration import PlannedRole, restore
from pgrole_controller.commands.plan_words import describe_privileges
from pgrole_controller.commands.server_reading import DATABASES_AT_ONCE, read_each, reading
from pgrole_controller.core.ddl import make_sendable, render_identifier
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.acl_decision import (
    PrivilegeDecision,
    decide_privileges,
    find_objects_to_date,
)
from pgrole_controller.core.privileges.adoption_findings import answer_for, is_cut
from pgrole_controller.core.privileges.grant_ddl import GrantStatement
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference, phrases
from pgrole_controller.core.privileges.privilege_policy import find_problems
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.plan_reading import PassedOn, read_passed_on, read_privileges
from pgrole_controller.postgres.privileges.acl_catalog import read_older
from pgrole_controller.postgres.privileges.grant_execution import find_loans

#: Number of adoptees of one read.
_MOST_READ = 100

#: Above every oid of PostgreSQL: placeholders for roles that the plan creates.
FIRST_PLACEHOLDER = 2**32


@dataclass(frozen=True, slots=True)
class PlannedGrantee:
    """A role to compare. `exists` False: its oid is a placeholder, and it holds nothing yet. `recorded`: databases
    whose declaration its claim already holds, so that it was probably applied.
    """

    grantee: Grantee
    exists: bool
    recorded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedPrivileges:
    """What would happen to the privileges of one role. `pending`: refusals and what waits. `drift`: some of it is."""

    changes: tuple[PlannedChange, ...] = ()
    sql: tuple[PlannedSql, ...] = ()
    notes: tuple[str, ...] = ()
    pending: tuple[PgRoleError, ...] = ()
    errors: tuple[PgRoleError, ...] = ()
    drift: bool = False


@dataclass(frozen=True, slots=True)
class PrivilegesPlan:
    by_object: Mapping[Key, PlannedPrivileges]
    notes: tuple[str, ...]


async def plan_privileges(
    endpoint: Endpoint, some: Sequence[PlannedGrantee], existing: frozenset[str], created: Mapping[str, int]
) -> PrivilegesPlan:
    """`existing`: databases. `created`: placeholders of the roles that the plan creates, by name. A database that
    cannot be read is an error of the objects that name it.
    """
    found: dict[Key, list[PlannedPrivileges]] = {one.grantee.key: [] for one in some}
    by_database: dict[str, list[PlannedGrantee]] = {}
    for one in some:
        problems = find_problems(one.grantee, existing)
        if problems:
            found[one.grantee.key].append(PlannedPrivileges(pending=tuple(problems.values())))
        for database in sorted(one.grantee.databases - problems.keys()):
            if database in existing:
                by_database.setdefault(database, []).append(one)
    databases = sorted(by_database)
    answers = await read_each(
        databases, lambda name: _plan_in(endpoint, name, by_database[name], created), DATABASES_AT_ONCE
    )
    unseen: list[str] = []
    for database, (results, stored) in zip(databases, answers, strict=True):
        if not stored:
            unseen.append(database)
        for one, result in zip(by_database[database], results, strict=True):
            found[one.grantee.key].append(result)
    notes = (
        (
            f"what was last applied not read in {_name(unseen)}: every difference from a recorded declaration counts "
            "as drift",
        )
        if unseen
        else ()
    )
    return PrivilegesPlan({key: _join(results) for key, results in found.items()}, notes)


def _name(databases: Sequence[str]) -> str:
    more = f" and {len(databases) - 5} more" if len(databases) > 5 else ""
    return f"{'databases' if len(databases) > 1 else 'database'} {', '.join(databases[:5])}{more}"


def _join(some: Sequence[PlannedPrivileges]) -> PlannedPrivileges:
    return PlannedPrivileges(
        tuple(each for one in some for each in one.changes),
        tuple(each for one in some for each in one.sql),
        tuple(each for one in some for each in one.notes),
        tuple(each for one in some for each in one.pending),
        tuple(each for one in some for each in one.errors),
        any(one.drift for one in some),
    )


async def _plan_in(
    endpoint: Endpoint, database: str, some: Sequence[PlannedGrantee], created: Mapping[str, int]
) -> tuple[list[PlannedPrivileges], bool]:
    """Returns one result for each, and whether the database reported what was last applied, if it stores that."""
    reach = PrivilegeReach.of(database, [one.grantee for one in some])
    oids = [one.grantee.oid for one in some if one.exists]
    try:
        async with reading(endpoint, database) as connection:
            observed, applied = await read_privileges(connection, oids, reach)
            roles = {name: oid for name, oid in created.items() if name in reach.creators}
            view = _PrivilegesView(database, replace(observed, roles={**roles, **observed.roles}), applied)
            decided = [view.decide(one) for one in some]
            missing = [view.find_missing(one, decision) for one, decision in zip(some, decided, strict=True)]
            older = await _read_older(connection, some, missing)
            decided = [
                view.decide(one, objects - older[one.grantee.oid]) if objects else decision
                for one, decision, objects in zip(some, decided, missing, strict=True)
            ]
            options = [view.find_options(one, decision) for one, decision in zip(some, decided, strict=True)]
            passed_on = await _read_passed_on(connection, some, options)
            planned = [
                PlannedRole(
                    one.grantee, decision, held, find_cascades(decision.changes, held, passed_on[one.grantee.oid])
                )
                if isinstance(decision, PrivilegeDecision)
                else decision
                for one, decision, held in zip(some, decided, options, strict=True)
            ]
            by_key = {one.grantee.key: one for one in some}
            restore(
                [one for one in planned if isinstance(one, PlannedRole)],
                view.observed,
                # what a role lacks then is on no new object
                lambda role, left: replace(view, observed=left).decide(by_key[role.grantee.key], frozenset()),
            )
            results = [await view.describe(connection, one) for one in planned]
    except PgRoleError as error:
        return [PlannedPrivileges(errors=(_in(database, error),)) for _ in some], True
    return results, applied is not None or not any(database in one.recorded for one in some)


async def _read_older(
    connection: Connection, some: Sequence[PlannedGrantee], missing: Sequence[frozenset[ObjectId]]
) -> defaultdict[int, set[ObjectId]]:
    """Returns, by role, which of the objects existed when what it declares was last applied. Raises PgRoleError."""
    asked = [
        (one.grantee.oid, each)
        for one, objects in zip(some, missing, strict=True)
        for each in objects
        if each.oid < FIRST_PLACEHOLDER  # roles that the plan creates are new
    ]
    found: defaultdict[int, set[ObjectId]] = defaultdict(set)
    for oid, each in await read_older(connection, asked) if asked else ():
        found[oid].add(each)
    return found


async def _read_passed_on(
    connection: Connection, some: Sequence[PlannedGrantee], options: Sequence[GrantOptions]
) -> defaultdict[int, dict[ObjectId, Sequence[PassedOn]]]:
    """Returns, by role and object, what it granted where it loses a grant option. Raises PgRoleError."""
    asked = [(one.grantee.oid, each) for one, held in zip(some, options, strict=True) for each in held]
    found: defaultdict[int, dict[ObjectId, Sequence[PassedOn]]] = defaultdict(dict)
    for (oid, each), granted in (await read_passed_on(connection, asked)).items() if asked else ():
        found[oid][each] = granted
    return found


def _in(database: str, error: PgRoleError) -> PgRoleError:
    return error.reword(f'database "{database}": {error.message}')


@dataclass(frozen=True, slots=True)
class _PrivilegesView:
    """One database as it was read. `applied`: as read_privileges returns it."""

    database: str
    observed: ObservedDatabase
    applied: Mapping[int, tuple[str, str]] | None

    def decide(
        self, one: PlannedGrantee, new_objects: frozenset[ObjectId] | None = None
    ) -> PrivilegeDecision | PgRoleError:
        """`new_objects`: as decide_privileges takes them."""
        grantee = one.grantee
        try:
            if self.applied is None:  # what is missing counts as drift, as every other difference
                digest = grantee.digest_of(self.database) if self.database in one.recorded else ""
                return decide_privileges(grantee, self.observed, digest, new_objects=frozenset())
            holder, stored = self.applied.get(grantee.oid, ("", ""))
            digest = stored if holder == grantee.holder_in(self.database) else ""
            return decide_privileges(grantee, self.observed, digest, new_objects=new_objects)
        except PgRoleError as error:
            return error
        except Exception as error:  # noqa: BLE001 -- this role's error, whatever the database holds
            return make_unexpected(error)

    def find_missing(self, one: PlannedGrantee, decision: PrivilegeDecision | PgRoleError) -> frozenset[ObjectId]:
        """Returns the objects whose age decides whether what the role lacks there is drift."""
        if self.applied is None or not one.exists or isinstance(decision, PgRoleError):
            return frozenset()
        return find_objects_to_date(decision, self.observed)

    def find_options(self, one: PlannedGrantee, decision: PrivilegeDecision | PgRoleError) -> GrantOptions:
        if isinstance(decision, PgRoleError):
            return {}
        return find_options(one.grantee.oid, decision.changes, self.observed)

    async def describe(self, connection: Connection, planned: PlannedRole | PgRoleError) -> PlannedPrivileges:
        """Raises PgRoleError if the connection is lost."""
        if isinstance(planned, PgRoleError):
            return PlannedPrivileges(errors=(_in(self.database, planned),))
        try:
            some = planned.render(self.observed.facts.version)
        except Exception as error:  # noqa: BLE001 -- this role's error, whatever the database holds
            return PlannedPrivileges(errors=(_in(self.database, make_unexpected(error)),))
        lines = [line for one in some for line in await _spell(connection, one)]
        return _describe(self.database, planned, tuple(lines))


def _describe(database: str, planned: PlannedRole, lines: tuple[str, ...]) -> PlannedPrivileges:
    decision = planned.decision
    changes = describe_privileges(decision.changes, decision.default_changes, database, planned.cascades)
    left = tuple(_describe_left(one, database) for one in decision.reported[:100])
    more = len(decision.reported) - len(left)
    notes = (f"{more} more differences of privileges in database {database} are only reported",) if more > 0 else ()
    return PlannedPrivileges(
        (*changes, *left),
        (PlannedSql(database, lines),) if lines else (),
        notes,
        decision.pending,
        drift=bool(decision.drift),
    )


def _describe_left(one: PrivilegeDifference, database: str) -> PlannedChange:
    (words,) = phrases([one])
    return PlannedChange(Sign.REMOVED if one.held else Sign.ADDED, "privileges", words, database, corrected=False)


async def _spell(connection: Connection, one: GrantStatement) -> list[str]:
    """Returns the statement, with what the controller lends the role in whose name it is run. Raises PgRoleError."""
    if not one.acting_as:
        return [one.text]
    acting = make_sendable(f"SET LOCAL ROLE {render_identifier(one.acting_as)}")
    schemas, columns = await find_loans(connection, one)
    return columns.around(schemas.around([acting, one.text, "RESET ROLE"]))


async def compare_adoptees(endpoint: Endpoint, adoptees: Sequence[Grantee]) -> dict[Key, dict[str, PrivilegeResult]]:
    """Returns results by object and database. A database that cannot be read is an error in the results."""
    found: dict[Key, dict[str, PrivilegeResult]] = {one.key: {} for one in adoptees}
    batches: list[tuple[str, list[Grantee]]] = []
    for database in sorted(frozenset[str]().union(*(one.databases for one in adoptees))):
        some = [one for one in adoptees if database in one.declared]
        batches += [(database, some[start : start + _MOST_READ]) for start in range(0, len(some), _MOST_READ)]
    for results in await read_each(batches, lambda batch: _compare(endpoint, *batch), DATABASES_AT_ONCE):
        for result in results:
            found[result.key][result.database] = result
    return found


async def _compare(endpoint: Endpoint, database: str, some: Sequence[Grantee]) -> list[PrivilegeResult]:
    try:
        async with reading(endpoint, database) as connection:
            observed, _ = await read_privileges(
                connection, [one.oid for one in some], PrivilegeReach.of(database, some)
            )
    except PgRoleError as error:
        return [PrivilegeResult(one.key, one.uid, database, one.digest_of(database), error) for one in some]
    if len(some) > 1 and is_cut(observed):
        return [result for one in some for result in await _compare(endpoint, database, [one])]
    return [answer_for(one, observed, make_unexpected) for one in some]
