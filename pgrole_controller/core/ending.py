"""What is done about an object that is being deleted: its role is released as it is, or emptied and dropped."""

from fnmatch import fnmatchcase

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.diff import Drop, SetAttribute
from pgrole_controller.core.disown import Disown
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.ownership import check_held, find_own_claim, find_target
from pgrole_controller.core.plan import Deed, Plan
from pgrole_controller.core.policy import Policy, check_protected, protection
from pgrole_controller.core.role import Found
from pgrole_controller.core.sight import Ask, Server, Sight

_WAY_OUT = "To keep the role and let the object go, set spec.deletionPolicy: Retain"


def decide_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    """The plan for one look. Raises Waiting with the reason DropBlocked and the way out while it cannot be dropped."""
    try:
        claim = find_own_claim(ask, sight, server)
    except Refused:
        claim = None  # another's: nothing of it is touched
    if not ask.drop or claim is None:
        return _release(ask, sight, claim)
    try:
        _check_end(ask, sight, server, policy)
        target = find_target(claim, sight, server, policy)
        if target is not None and (sight.needs or sight.sessions):
            return _empty(ask, sight, target, server, policy)
    except PgRoleError as error:
        if isinstance(error, Refused) or error.reason is Reason.DROP_BLOCKED:
            raise Waiting(Reason.DROP_BLOCKED, f"{error.message}. {_WAY_OUT}") from error
        raise
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


def _release(ask: Ask, sight: Sight, claim: Claim | None) -> Plan:
    """The role stays as it is; only the login that was taken away to empty it is given back."""
    held = claim is not None and sight.claim is not None and not claim.released
    own = ((claim.role_name, claim.owner.object_uid),) if claim and held else ()
    named = sight.named
    known = claim is not None and held and named is not None and named.oid == claim.role_oid
    if known and named and ask.wanted.login and not named.role.login and not ask.suspended:
        return Plan(
            role_name=ask.wanted.name,
            changes=(SetAttribute(named.role.name, "login", True),),
            oid=named.oid,
            seen_as=named.role.name,
            claim=sight.claim,
        )
    return Plan(role_name=ask.wanted.name, releases=(*sight.former, *own))


def _check_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> None:
    if ask.suspended:
        raise Refused(Reason.SUSPENDED, "spec.suspend is true, so the role is not dropped")
    if not policy.drop:
        raise Refused(Reason.NOT_ALLOWED, "the policy of the server does not allow objects to drop roles")
    found = [one for one in (sight.named, sight.claimed) if one]
    check_protected(policy, ask.wanted.name, found, server.own_roles)
    check_held(sight)
    if sight.needs and not ask.heir:
        raise Refused(
            Reason.DROP_BLOCKED,
            f'role "{ask.wanted.name}" still owns objects, has grants or members: {_count(sight)}. '
            f"spec.reassignOwnedTo hands over what it owns and takes its privileges away",
        )


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
        return Plan(
            role_name=ask.wanted.name,
            changes=(SetAttribute(target.role.name, "login", False),),
            oid=target.oid,
            seen_as=target.role.name,
            claim=sight.claim,
        )
    if ask.emptied is not None:
        raise ask.emptied.problem or Waiting(
            Reason.DROP_BLOCKED, f'role "{ask.wanted.name}" is needed again meanwhile: {_count(sight) or "sessions"}'
        )
    if not sight.needs and not ask.terminate_sessions:
        raise Waiting(
            Reason.DROP_BLOCKED,
            f'role "{ask.wanted.name}" has open sessions: {sight.sessions}. It is dropped when they end; '
            f"spec.terminateSessions: true ends them",
        )
    disown = Disown(target.role.name, target.oid, ask.heir or None, ask.terminate_sessions)
    return Plan(role_name=ask.wanted.name, disown=disown)


def _check_heir(policy: Policy, ask: Ask, sight: Sight, server: Server) -> None:
    """Raises Refused for a role that may not be given what a dropped one owned.

    A function that runs with its owner's privileges does what its author wants with those of the heir.
    """
    name, heir = ask.heir, sight.heir
    if name == ask.wanted.name:
        raise Refused(Reason.INVALID_SPEC, "spec.reassignOwnedTo is the role itself: name another one")
    why = protection(policy, name, heir.oid if heir else None, server.own_roles)
    if why:
        raise Refused(Reason.PROTECTED, f'spec.reassignOwnedTo: role "{name}" is {why}')
    if heir is None:
        raise Refused(Reason.DROP_BLOCKED, f'spec.reassignOwnedTo: there is no role "{name}"')
    own = (ask.owner.cluster, ask.owner.namespace, ask.owner.namespace_uid)
    if heir.place != own and not any(fnmatchcase(name, pattern) for pattern in policy.reassign_to):
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: role "{name}" is no PgRole\'s of namespace {ask.owner.namespace}, and the policy '
            f"of the server does not allow it; allowed: {', '.join(policy.reassign_to) or 'none'}",
        )
    reached = sight.around.groups.get(name, ())
    if reached and name not in policy.reassign_to:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.reassignOwnedTo: role "{name}" reaches {", ".join(reached)}, and what is given to it could use that',
        )
