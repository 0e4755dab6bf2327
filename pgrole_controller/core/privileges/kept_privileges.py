"""The privileges that a claim holds: those that the spec declares, and earlier ones that are not revoked yet.

The claim holds a declaration before any of it is granted. So a process that knows only the claim can find what a spec
no longer declares, and revoke it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import DropInterrupted, PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
    from_json,
    to_json,
)
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.state import Desired, Observed, Server

#: Maximum size of the JSON in a claim, in bytes. The same limit is in sql/inspect/roles.sql.
LARGEST = 2**20

#: Declarations by database; their order has no meaning.
KeptPrivileges: TypeAlias = Mapping[str, tuple[DatabasePrivileges, ...]]

NOTHING: KeptPrivileges = MappingProxyType({})


def read_kept(text: str) -> KeptPrivileges:
    """Reads what `write_kept` wrote. Raises Transient for anything else."""
    if not text:
        return NOTHING
    try:
        stored = json.loads(text)
        return {str(name): tuple(map(from_json, declarations)) for name, declarations in stored.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Transient(
            Reason.DATABASE_ERROR,
            "the controller cannot read the privileges in the claim on the role: an administrator must set column "
            "privileges of its row in pgrole.claim to ''",
        ) from None


def write_kept(kept: KeptPrivileges) -> str:
    """Returns canonical JSON in ASCII; empty if the claim holds nothing."""
    if not kept:
        return ""
    held = {name: [to_json(one) for one in declarations] for name, declarations in kept.items()}
    return json.dumps(held, sort_keys=True, separators=(",", ":"))


def unite(declared: Mapping[str, DatabasePrivileges], kept: KeptPrivileges) -> KeptPrivileges:
    """Returns everything that is declared or kept; in each database, declared privileges come first."""
    names = sorted({*declared, *kept})
    return {
        name: tuple(dict.fromkeys(([declared[name]] if name in declared else []) + [*kept.get(name, ())]))
        for name in names
    }


def former_of(declared: Mapping[str, DatabasePrivileges], kept: KeptPrivileges) -> KeptPrivileges:
    """Returns what is kept but not declared."""
    left = {name: tuple(one for one in some if one != declared.get(name)) for name, some in kept.items()}
    return {name: some for name, some in left.items() if some}


def merge_former(some: Iterable[DatabasePrivileges]) -> tuple[DatabasePrivileges, ...]:
    """Returns as few former declarations as grant the same, so that their size is bounded by what they name, however
    often a spec changes. Those with other creators stay apart: default privileges are of each creator in each schema.
    """
    merged: dict[frozenset[str], DatabasePrivileges] = {}
    for one in some:
        creators = frozenset(one.created_by)
        merged[creators] = _merge(merged[creators], one) if creators in merged else one
    return tuple(merged.values())


def _merge(one: DatabasePrivileges, other: DatabasePrivileges) -> DatabasePrivileges:
    access: dict[tuple[str, frozenset[str]], frozenset[Access]] = {}
    for each in (*one.schemas, *other.schemas):
        place = each.schema, frozenset(each.exceptions)
        access[place] = access.get(place, frozenset()) | each.access
    names: dict[ObjectPrivileges, frozenset[str]] = {}
    for item in (*one.objects, *other.objects):
        kind = replace(item, names=()) if item.names else item
        names[kind] = names.get(kind, frozenset()) | frozenset(item.names)
    return replace(
        one,
        on_database=one.on_database | other.on_database,
        schemas=tuple(SchemaAccess(name, given, tuple(sorted(but))) for (name, but), given in access.items()),
        objects=tuple(replace(kind, names=tuple(sorted(some))) for kind, some in names.items()),
        unmanaged=(),
    )


def former_databases(desired: Desired, kept: KeptPrivileges) -> frozenset[str]:
    """Returns the databases that only former specs declare."""
    return frozenset(kept) - frozenset(() if desired.terminating else desired.privileges or ())


def explain_former(database: str, error: PgRoleError) -> PgRoleError:
    """Returns the error for a database that only former specs declare."""
    message = (
        f'database "{database}" is no longer in spec.privileges, but the role may still have privileges there, and the '
        f"controller cannot revoke them: {add_ways_out(error)}"
    )
    kind = next((one for one in (Refused, Waiting) if isinstance(error, one)), Transient)
    return kind(error.reason, message)


def add_ways_out(error: PgRoleError) -> str:
    """Returns the message, with how else the privileges in the database can be revoked, if they can."""
    if isinstance(error, DropInterrupted):
        return error.message
    return f"{error.message}. Let the controller connect there, or revoke them by hand"


def answered_for(claim: Claim | None, desired: Desired, server: Server) -> KeptPrivileges:
    """Returns what the object must answer for. Where claims hold no privileges, that is its declaration."""
    if not server.has_current_schema:
        return unite(desired.privileges or {}, NOTHING)
    return claim.privileges if claim else NOTHING


def grantee_of(desired: Desired, kept: KeptPrivileges, oid: int) -> Grantee:
    """Returns the Grantee for the workers of the role's databases. `kept`: from its claim. `oid`: of the role. The
    caller sets `policy`, `owned` and the name of a renamed role.
    """
    declared = {} if desired.terminating else dict(desired.privileges or {})
    owner = desired.owner
    return Grantee(
        key=Key(owner.namespace, owner.object),
        uid=owner.object_uid,
        generation=desired.generation,
        role_name=desired.role.name,
        oid=oid,
        declared=declared,
        former=former_of(declared, kept),
        report_only=desired.report_only,
        ignored=desired.privileges_ignored,
        suspended=desired.suspended,
        approval=desired.approval,
        namespace_uid=owner.namespace_uid,
    )


def unconfirmed(
    desired: Desired, kept: KeptPrivileges, oid: int, existing: Iterable[str], unheld: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Returns the databases in which privileges of former specs may remain. `existing`: the kept databases
    that exist. `unheld`: those in which the role has none, as read after the results.
    """
    grantee = grantee_of(desired, kept, oid)
    existing = frozenset(existing)
    return frozenset(
        name for name in grantee.former if name in existing and not _is_confirmed(desired, grantee, name, unheld)
    )


def _is_confirmed(desired: Desired, grantee: Grantee, database: str, unheld: frozenset[str]) -> bool:
    """A database that no worker can serve has no part in this, if the role has nothing there. The result proves that
    the worker knows the declaration, so that no later session there grants anything.
    """
    result = find_answer(desired.privilege_results, grantee, database)
    if result is None:
        return False
    return result.confirmed or (database not in grantee.declared and database in unheld)


def find_answer(results: Mapping[str, PrivilegeResult], grantee: Grantee, database: str) -> PrivilegeResult | None:
    """Returns the result of the database's worker, if it is about this declaration."""
    result = results.get(database)
    if result is None or (result.uid, result.digest) != (grantee.uid, grantee.digest_of(database)):
        return None
    return result


def keep_privileges(plan: Plan, desired: Desired, observed: Observed, server: Server) -> Plan:
    """Adds to the plan what the claim should hold, if it differs: new declarations at once, and without former ones as
    soon as their database has confirmed that nothing of them remains.
    """
    claim, declared = observed.claim, desired.privileges or {}
    kept = claim.privileges if claim else NOTHING
    if not (declared or kept) or not server.has_current_schema or desired.terminating:
        return plan
    ours = claim is not None and claim.is_held_by(desired.owner)
    if not (plan.owner or ours) or plan.refused or any(isinstance(one, Refused) for one in plan.pending):
        return plan
    oid = claim.role_oid if claim and ours and claim.role_oid == plan.oid else 0
    lost = claim is not None and claim.is_of_lost_role(plan.oid, server.system_identifier)
    former = NOTHING if lost else kept
    existing = observed.references.databases if oid else former
    still_open = unconfirmed(desired, former, oid, existing, observed.unheld)
    given_up = former_of(declared, former)
    wanted = unite(declared, {name: merge_former(given_up[name]) for name in still_open})
    if wanted == kept:
        return plan
    text = write_kept(wanted)
    if len(text) > LARGEST:
        return replace(plan, pending=(*plan.pending, _too_much()))
    return replace(plan, privileges=text)


def _too_much() -> Refused:
    return Refused(
        Reason.INVALID_SPEC,
        f"spec.privileges: together with earlier declarations that are not revoked yet, it takes more than "
        f"{LARGEST // 2**20} MiB: declare less, or wait until the privileges that were given up are revoked",
    )
