"""What is done about an object that is being deleted: its role is released as it is, or emptied and dropped."""

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.diff import Change, Drop, Rename, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.ownership import check_held, find_own_claim, find_target
from pgrole_controller.core.plan import Deed, Disown, Plan
from pgrole_controller.core.policy import Policy, check_admitted, check_protected, matches, protection, reaches_beyond
from pgrole_controller.core.role import Found
from pgrole_controller.core.state import Ask, Needs, Server, Sight

_WAY_OUT = "To keep the role and delete only the object, set spec.deletionPolicy: Retain"

#: What the claim says was applied last, from when the login was taken away until it is given back or the role is gone.
LOGIN_TAKEN = "without login, to be dropped"


def decide_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    """The plan for one look. Raises Waiting with the reason DropBlocked and the way out while it cannot be dropped."""
    try:
        claim = find_own_claim(ask, sight, server)
    except Refused:
        claim = None  # another's: nothing of it is touched
    if not ask.drop or claim is None:
        return _release(ask, sight, server, claim)
    try:
        _check_end(ask, sight, server, policy)
        target = find_target(claim, sight, server, policy)
        if target is not None and (_needs(ask, sight) or sight.sessions):
            return _empty(ask, sight, target, server, policy)
    except PgRoleError as error:
        said = Waiting(Reason.DROP_BLOCKED, error.message) if isinstance(error, Refused) else error
        raise name_way_out(said) from error
    return Plan(
        role_name=ask.wanted.name,
        changes=(Drop(target.role.name),) if target else (),
        oid=target.oid if target else None,
        seen_as=target.role.name if target else ask.wanted.name,
        claim=sight.claim,
        releases=sight.former,
        forget=sight.claim is not None,
        deed=Deed.DROPPED if target else Deed.NOTHING,
    )


def find_ending(ask: Ask, sight: Sight, server: Server, policy: Policy) -> int | None:
    """The oid of the role that shall be dropped: what needs it is to be looked for. None where nothing is dropped."""
    if not (ask.terminating and ask.drop):
        return None
    try:
        claim = find_own_claim(ask, sight, server)
        target = find_target(claim, sight, server, policy) if claim else None
    except Refused:
        return None  # `decide_end` says so
    return target.oid if target else None


def name_way_out(error: PgRoleError) -> PgRoleError:
    """What keeps an object from going says how to let it go."""
    if _WAY_OUT in error.message:
        return error
    return type(error)(error.reason, f"{error.message}. {_WAY_OUT}")


def _release(ask: Ask, sight: Sight, server: Server, claim: Claim | None) -> Plan:
    """The role stays as it is; only the login that was taken away to empty it is given back."""
    if claim is None or sight.claim is None or claim.released:
        return Plan(role_name=ask.wanted.name, releases=sight.former)
    target = _find_without_login(claim, sight, server)
    had = ask.wanted.login or ask.report_only or "login" in ask.ignore
    if target and had and not ask.suspended:
        return Plan(
            role_name=ask.wanted.name,
            changes=(SetAttribute(target.role.name, "login", True),),
            oid=target.oid,
            seen_as=target.role.name,
            claim=sight.claim,
        )
    return Plan(role_name=ask.wanted.name, releases=(*sight.former, (claim.role_name, claim.owner.object_uid)))


def _find_without_login(claim: Claim, sight: Sight, server: Server) -> Found | None:
    """The role of the claim, under whatever name, where its login was taken away here."""
    if claim.applied != LOGIN_TAKEN or claim.system_identifier != server.system_identifier:
        return None
    return next(
        (
            one
            for one in (sight.named, sight.claimed)
            if one and one.oid == claim.role_oid and not one.held_by and not one.role.login
        ),
        None,
    )


def _check_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> None:
    if ask.suspended:
        raise Refused(
            Reason.SUSPENDED, "spec.suspend is true, so the controller does not drop the role: set it to false"
        )
    if not policy.drop:
        raise Refused(Reason.NOT_ALLOWED, "the server's policy does not allow objects to drop roles")
    check_admitted(policy, ask.wanted.name)
    found = [one for one in (sight.named, sight.claimed) if one]
    check_protected(policy, ask.wanted.name, found, server.own_roles)
    check_held(sight)
    if sight.needs and not ask.heir:
        raise Refused(
            Reason.DROP_BLOCKED,
            f'role "{ask.wanted.name}" still owns objects, has grants or members: {_count(sight)}. '
            f"To hand over the objects and revoke the grants, set spec.reassignOwnedTo",
        )


def _needs(ask: Ask, sight: Sight) -> tuple[Needs, ...]:
    """What has to go before the role can be dropped: with an heir, its members are no reason to keep it.

    They are not revoked before: another object may declare a membership, and would grant it again at once.
    """
    return tuple(need for need in sight.needs if not ask.heir or need.count > need.members)


def _count(sight: Sight) -> str:
    return ", ".join(
        f'{need.count} in database "{need.database}"' if need.database else f"{need.count} shared by the server"
        for need in sight.needs
    )


def _empty(ask: Ask, sight: Sight, target: Found, server: Server, policy: Policy) -> Plan:
    """Nobody logs in as the role any more; the rest is taken care of beside the lane, before the next look."""
    if ask.heir:
        _check_heir(policy, ask, sight, server)
    if target.role.login:
        return _take_login(ask, sight, target)
    if ask.emptied is not None:
        raise ask.emptied.problem or Waiting(
            Reason.DROP_BLOCKED, f'role "{ask.wanted.name}" is in use again: {_count(sight) or "sessions"}'
        )
    if not _needs(ask, sight) and not ask.terminate_sessions:
        raise Waiting(
            Reason.DROP_BLOCKED,
            f'role "{ask.wanted.name}" has open sessions: {sight.sessions}. The controller drops the role when they '
            f"end; to terminate them, set spec.terminateSessions: true",
        )
    heir = sight.heir.oid if sight.heir else None
    disown = Disown(target.role.name, target.oid, ask.heir or None, ask.terminate_sessions, heir)
    return Plan(role_name=ask.wanted.name, disown=disown)


def _take_login(ask: Ask, sight: Sight, target: Found) -> Plan:
    """The claim remembers it, so that it can be given back; for that the role must have its name."""
    name = ask.wanted.name
    named: tuple[Change, ...] = () if target.role.name == name else (Rename(target.role.name, name),)
    return Plan(
        role_name=name,
        changes=(*named, SetAttribute(name, "login", False)),
        oid=target.oid,
        seen_as=target.role.name,
        claim=sight.claim,
        owner=ask.owner,
        applied=LOGIN_TAKEN,
    )


def _check_heir(policy: Policy, ask: Ask, sight: Sight, server: Server) -> None:
    """Raises Refused for a role that may not be given what a dropped one owned.

    A function that runs with its owner's privileges does what its author wants with those of the heir.
    """
    name, heir = ask.heir, sight.heir
    if name == ask.wanted.name:
        raise Refused(Reason.INVALID_SPEC, "spec.reassignOwnedTo must not be the role itself: name another role")
    why = protection(policy, name, heir.oid if heir else None, server.own_roles)
    if why:
        raise Refused(Reason.PROTECTED, f'spec.reassignOwnedTo: role "{name}" is {why}')
    if heir is None:
        raise Refused(Reason.DROP_BLOCKED, f'spec.reassignOwnedTo: role "{name}" does not exist')
    own = (ask.owner.cluster, ask.owner.namespace, ask.owner.namespace_uid)
    if heir.place != own and not matches(name, policy.reassign_to):
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: no PgRole in namespace {ask.owner.namespace} declares role "{name}", and the '
            f"server's policy does not allow it; allowed: {', '.join(policy.reassign_to) or 'none'}",
        )
    reached = reaches_beyond(policy, name, sight.around, policy.reassign_to)
    if reached:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: role "{name}" reaches {", ".join(reached)}: name a role without such privileges',
        )
