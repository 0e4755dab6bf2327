"""Decides about an object that is being deleted: its role is released unchanged, or emptied and dropped."""

from pgrole_controller.core.claim import Claim, ClaimKey
from pgrole_controller.core.diff import Change, Drop, Rename, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting, WaitingForDatabases
from pgrole_controller.core.names import count_things, matches, name_most
from pgrole_controller.core.ownership import check_name_free, find_own_claim, find_target
from pgrole_controller.core.plan import Action, Plan, ReassignOwned
from pgrole_controller.core.policy import Policy, check_admitted, check_protected, protection, reaches_beyond
from pgrole_controller.core.privileges.kept_privileges import (
    NOTHING,
    KeptPrivileges,
    add_ways_out,
    answered_for,
    find_answer,
    grantee_of,
    unconfirmed,
    unite,
    write_kept,
)
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Dependents, Desired, Observed, Server

_WAY_OUT = "To keep the role and delete only the object, set spec.deletionPolicy: Retain"

#: Takes the place of `applied` in the claim from when the controller takes the login away until it gives it back or
#: drops the role.
LOGIN_TAKEN = "without login, to be dropped"


def decide_deletion(desired: Desired, observed: Observed, server: Server, policy: Policy) -> Plan:
    """Returns the plan for one reconcile. Raises Waiting (DropBlocked, with the remedy) while the role cannot be
    dropped.
    """
    try:
        claim = find_own_claim(desired, observed, server)
    except Refused:
        claim = None  # another object's claim: touch nothing
    if not desired.drop or claim is None or claim.released:  # released: the object has not taken the role back
        return _release(desired, observed, server, policy, claim)
    try:
        _check_deletion(desired, observed, server, policy)
        target = find_target(claim, observed, server, policy)
        if target is not None and (cleared := _after_revocation(desired, claim, target, observed, server)):
            return cleared
        _check_dependents(desired, observed)
        if target is not None and (_dependents(desired, observed) or observed.sessions):
            return _empty(desired, observed, target, server, policy)
    except PgRoleError as error:
        waiting = Waiting(Reason.DROP_BLOCKED, error.message) if isinstance(error, Refused) else error
        raise add_way_out(waiting) from error
    return Plan(
        role_name=desired.role.name,
        changes=(Drop(target.role.name),) if target else (),
        oid=target.oid if target else None,
        seen_as=target.role.name if target else desired.role.name,
        claim=observed.claim,
        releases=observed.other_claims,
        forget=observed.claim is not None,
        action=Action.DROPPED if target else Action.NOTHING,
    )


def may_revoke(desired: Desired, observed: Observed, server: Server, policy: Policy) -> bool:
    """Tells whether the role's privileges may be revoked, since it is going to be dropped."""
    try:
        if desired.drop:
            _check_deletion(desired, observed, server, policy)
    except Refused:
        return False
    return desired.drop


def find_role_to_drop(desired: Desired, observed: Observed, server: Server, policy: Policy) -> int | None:
    """Returns the oid of the role to drop, whose dependents must be read; None if nothing is to be dropped."""
    if not (desired.terminating and desired.drop):
        return None
    try:
        claim = find_own_claim(desired, observed, server)
        target = find_target(claim, observed, server, policy) if claim and not claim.released else None
    except Refused:
        return None  # `decide_deletion` reports it
    return target.oid if target else None


def add_way_out(error: PgRoleError) -> PgRoleError:
    """Adds the remedy to an error that keeps an object from being deleted."""
    if _WAY_OUT in error.message:
        return error
    return error.extend(_WAY_OUT)


def block_drop(failure: PgRoleError) -> PgRoleError:
    """Returns the error for a role that PostgreSQL did not let the controller empty or drop, with the remedy."""
    lacking = isinstance(failure, Refused) and failure.reason is Reason.DATABASE_ERROR
    return add_way_out(Waiting(Reason.DROP_BLOCKED, failure.message) if lacking else failure)


def _release(desired: Desired, observed: Observed, server: Server, policy: Policy, claim: Claim | None) -> Plan:
    """Releases the role unchanged, but gives back a login that was taken away to empty it."""
    if claim is None or claim.released:
        return Plan(role_name=desired.role.name, releases=observed.other_claims)
    target = _find_without_login(claim, observed, server)
    had = desired.role.login or desired.report_only or "login" in desired.ignore
    if target and had and not desired.suspended and _may_give_back(desired, claim, observed, server, policy):
        return Plan(
            role_name=desired.role.name,
            changes=(SetAttribute(target.role.name, "login", True),),
            oid=target.oid,
            seen_as=target.role.name,
            claim=observed.claim,
        )
    held = () if observed.claim is None else (ClaimKey(claim.role_name, claim.owner.object_uid),)
    return Plan(role_name=desired.role.name, releases=(*observed.other_claims, *held))


def _may_give_back(desired: Desired, claim: Claim, observed: Observed, server: Server, policy: Policy) -> bool:
    """Tells whether the object may change the role. If only status proves that it is the object's, it must be one that
    could be taken back.
    """
    if observed.claim is not None:
        return True
    try:
        _check_role(desired, observed, server, policy)
        find_target(claim, observed, server, policy)
    except Refused:
        return False
    return True


def _find_without_login(claim: Claim, observed: Observed, server: Server) -> ObservedRole | None:
    """Returns the claimed role, under whatever name, if the controller took its login away."""
    if claim.applied != LOGIN_TAKEN or claim.system_identifier != server.system_identifier:
        return None
    return next(
        (
            one
            for one in (observed.named, observed.claimed)
            if one and one.oid == claim.role_oid and not one.owner_elsewhere and not one.role.login
        ),
        None,
    )


def _check_deletion(desired: Desired, observed: Observed, server: Server, policy: Policy) -> None:
    if desired.suspended:
        raise Refused(
            Reason.SUSPENDED, "spec.suspend is true, so the controller does not drop the role: set it to false"
        )
    if not policy.drop:
        raise Refused(
            Reason.NOT_ALLOWED,
            "the server's policy does not allow objects to drop roles: ask the server's administrator for allow.drop",
        )
    _check_role(desired, observed, server, policy)


def _check_role(desired: Desired, observed: Observed, server: Server, policy: Policy) -> None:
    check_admitted(policy, desired.role.name)
    found = [one for one in (observed.named, observed.claimed) if one]
    check_protected(policy, desired.role.name, found, server.own_roles)
    check_name_free(observed)


def _after_revocation(
    desired: Desired, claim: Claim, target: ObservedRole, observed: Observed, server: Server
) -> Plan | None:
    """Clears the privileges in the claim once they are revoked in every database; None if it holds none. Takes the
    claim first where only status proves it, because the databases' workers do not serve a role without one. Raises
    WaitingForDatabases until then.
    """
    lost = observed.claim is None
    kept = unite(desired.privileges or {}, NOTHING) if lost else answered_for(observed.claim, desired, server)
    same_role = claim.system_identifier == server.system_identifier and claim.role_oid == target.oid
    if not kept or not same_role:
        return None
    if lost:
        return _take_claim(desired, claim, target, observed, server, kept)
    left = sorted(unconfirmed(desired, kept, target.oid, observed.references.databases, observed.unheld))
    if not left:
        return _clear_privileges(desired, observed, target) if server.has_current_schema else None
    more = f" (and in {len(left) - 1} more databases)" if len(left) > 1 else ""
    result = find_answer(desired.privilege_results, grantee_of(desired, kept, target.oid), left[0])
    what = f'privileges of role "{desired.role.name}" in database "{left[0]}"{more}'
    if result is not None and result.error is not None:
        raise WaitingForDatabases(Reason.DROP_BLOCKED, f"{what} cannot be revoked: {add_ways_out(result.error)}")
    raise WaitingForDatabases(Reason.PROGRESSING, f"the controller revokes {what} before it drops the role")


def _take_claim(
    desired: Desired, claim: Claim, target: ObservedRole, observed: Observed, server: Server, kept: KeptPrivileges
) -> Plan:
    return Plan(
        role_name=desired.role.name,
        oid=target.oid,
        seen_as=target.role.name,
        claim=server.find_expected_claim(claim, observed),
        owner=desired.owner,
        applied=claim.applied,
        privileges=write_kept(kept) if server.has_current_schema else None,
    )


def _clear_privileges(desired: Desired, observed: Observed, target: ObservedRole) -> Plan | None:
    if observed.claim is None or observed.claim.owner != desired.owner:
        return None
    return Plan(
        role_name=desired.role.name, oid=target.oid, seen_as=target.role.name, claim=observed.claim, privileges=""
    )


def _check_dependents(desired: Desired, observed: Observed) -> None:
    if observed.dependents and not desired.new_owner:
        raise Refused(
            Reason.DROP_BLOCKED,
            f'role "{desired.role.name}" still owns objects, has grants or members: {_count(observed)}. '
            f"To reassign the objects and revoke the grants, set spec.reassignOwnedTo",
        )


def _dependents(desired: Desired, observed: Observed) -> tuple[Dependents, ...]:
    """Returns what must be removed before the role can be dropped. With a new owner, members do not block the drop.

    Memberships are not revoked first: another object may declare one, and would grant it again at once.
    """
    return tuple(
        dependent for dependent in observed.dependents if not desired.new_owner or dependent.count > dependent.members
    )


def _count(observed: Observed) -> str:
    return ", ".join(f"{one.count} {_place(one)}" for one in observed.dependents)


def _place(dependents: Dependents) -> str:
    if dependents.others:
        return f"in {count_things(dependents.others, 'more database')}"
    return f'in database "{dependents.database}"' if dependents.database else "shared by the server"


def _empty(desired: Desired, observed: Observed, target: ObservedRole, server: Server, policy: Policy) -> Plan:
    """Takes the login away; the rest happens in the background before the next reconcile."""
    if desired.new_owner:
        _check_new_owner(policy, desired, observed, server)
    if target.role.login:
        return _take_login(desired, observed, target)
    new_owner = observed.new_owner.oid if observed.new_owner else None
    reassign = ReassignOwned(
        target.role.name, target.oid, desired.new_owner or None, desired.terminate_sessions, new_owner
    )
    result = desired.reassign_result
    if result is not None and result.task == reassign:
        raise result.problem or Waiting(
            Reason.DROP_BLOCKED, f'role "{desired.role.name}" is in use again: {_count(observed) or "sessions"}'
        )
    if not _dependents(desired, observed) and not desired.terminate_sessions:
        raise Waiting(
            Reason.DROP_BLOCKED,
            f'role "{desired.role.name}" has open sessions: {observed.sessions}. The controller drops the role when '
            "they end; to terminate them, set spec.terminateSessions: true",
        )
    return Plan(role_name=desired.role.name, reassign=reassign)


def _take_login(desired: Desired, observed: Observed, target: ObservedRole) -> Plan:
    """Records it in the claim, so that the login can be given back. For this the role must have its declared name."""
    name = desired.role.name
    named: tuple[Change, ...] = () if target.role.name == name else (Rename(target.role.name, name),)
    return Plan(
        role_name=name,
        changes=(*named, SetAttribute(name, "login", False)),
        oid=target.oid,
        seen_as=target.role.name,
        claim=observed.claim,
        owner=desired.owner,
        applied=LOGIN_TAKEN,
    )


def _check_new_owner(policy: Policy, desired: Desired, observed: Observed, server: Server) -> None:
    """Raises Refused for a role that may not receive what a dropped one owned.

    A function that runs with its owner's privileges would let its author act with those of the new owner.
    """
    name, new_owner = desired.new_owner, observed.new_owner
    if name == desired.role.name:
        raise Refused(Reason.INVALID_SPEC, "spec.reassignOwnedTo must not be the role itself: name another role")
    why = protection(policy, name, new_owner.oid if new_owner else None, server.own_roles)
    if why:
        raise Refused(Reason.PROTECTED, f'spec.reassignOwnedTo: role "{name}" is {why}: name another role')
    if new_owner is None:
        raise Refused(
            Reason.DROP_BLOCKED, f'spec.reassignOwnedTo: role "{name}" does not exist: create it, or name another role'
        )
    own = (desired.owner.cluster, desired.owner.namespace, desired.owner.namespace_uid)
    if new_owner.place != own and not matches(name, policy.reassign_to):
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: no PgRole in namespace {desired.owner.namespace} declares role "{name}", and the '
            f"server's policy does not allow it; allowed: {name_most(policy.reassign_to)}. Name another "
            "role, or ask the server's administrator for allow.reassignTo",
        )
    reached = reaches_beyond(policy, name, observed.references, policy.as_written.reassign_to)
    if reached:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: role "{name}" reaches {name_most(reached)}: name a role without such privileges',
        )
