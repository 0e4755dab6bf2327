"""What is done about one object: who owns the role, what is changed, what is claimed or released.

`decide` is given what the object asks and what was seen of it in the database, and returns a plan or raises Refused
or Waiting. It is called anew at every look and holds no memory; calling it again after its plan was carried out gives
a plan without changes.

A role whose object is refused: nothing is given, and what others gave is taken away. Without this, whoever gets a role
more than it may have would only need its object refused for anything else. What the object declares stays as it is,
allowed or not: a policy that is tightened takes nothing away from the roles there are.

Taken away is what is not declared, as far as that is drift for certain (the spec is the one that was applied last) or
beyond the policy; of a spec that was changed meanwhile nothing else is known, and nothing of it is half applied.

While Kubernetes cannot be reached, what was applied before is kept, and nothing else. A database that enforces its
roles does not depend on Kubernetes, but what is known here may be old by then. The claim says what was last acted on,
so a drift is repaired only where that is exactly what this process knows. Nothing is created for the first time,
adopted, dropped, handed over, released or generated, and no Secret is read.
"""

from collections.abc import Sequence
from dataclasses import replace

from pgrole_controller.core.claim import Claim, Generations
from pgrole_controller.core.deletion import decide_end
from pgrole_controller.core.diff import (
    Change,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetParameter,
    diff,
    field_names,
)
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.ownership import check_held, find_own_claim, find_target, proves
from pgrole_controller.core.password import Origin, Record
from pgrole_controller.core.password_rules import Settlement, settle
from pgrole_controller.core.plan import Deed, Plan
from pgrole_controller.core.policy import (
    Policy,
    Surroundings,
    check_holds,
    check_memberships,
    check_parameters,
    check_protected,
    check_wanted,
    may_pass_on,
    restrain,
    why_not_joined,
)
from pgrole_controller.core.role import POWERS, Found, Role, digest
from pgrole_controller.core.state import Ask, Rival, Server, Sight

#: In a condition, which is read by people: of more, the rest is counted.
_NAMED = 5


def decide(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    """The plan for one look. Raises Refused or Waiting when nothing may be done."""
    if server.away:
        check_enforceable(ask, sight, server)
        return keep_applied(_decide(ask, sight, server, policy))
    return _note_generations(_decide(ask, sight, server, policy), ask, sight, server)


def _decide(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    if ask.terminating:
        return decide_end(ask, sight, server, policy)
    if ask.suspended:
        raise Refused(Reason.SUSPENDED, "spec.suspend is true: the controller neither reads nor changes the role")
    _check_name(ask, sight, server, policy)
    check_held(sight)
    try:
        _check_policy(policy, ask.wanted, sight.around)
    except Refused as refusal:
        return _restrain(ask, sight, server, policy, refusal)
    wanted, pending = _within_reach(ask.wanted, sight.around)
    asked = ask if wanted is ask.wanted else replace(ask, wanted=wanted)
    claim = find_own_claim(asked, sight, server)
    target = find_target(claim, sight, server, policy) if claim else sight.named
    settled = settle(asked, claim, target, sight, server, policy)
    if settled.left:
        asked = replace(asked, ignore=asked.ignore | {"password"})
    elif settled.password is not wanted.password or "password" in asked.ignore:
        asked = replace(asked, wanted=replace(wanted, password=settled.password), ignore=asked.ignore - {"password"})
    releases = tuple(former for former in sight.former if former[1] != ask.owner.object_uid)
    if claim is None:
        plan = _take_first(asked, sight, server, policy, settled)
    else:
        plan = _keep(asked, claim, target, sight, server, policy, settled)
    waiting = (*pending, settled.pending) if settled.pending else pending
    if not (waiting or settled.errand or releases):
        return plan
    return replace(plan, pending=waiting, errand=settled.errand, releases=releases)


def _note_generations(plan: Plan, ask: Ask, sight: Sight, server: Server) -> Plan:
    """What a claim of this object says of what was acted on is brought up to date with the rest."""
    if ask.terminating or not server.notes_generations or any(isinstance(one, Refused) for one in plan.pending):
        return plan
    claim, known = sight.claim, generations_of(ask, server)
    held = plan.owner is not None or (claim is not None and claim.owner == ask.owner and not claim.released)
    if not held or (claim is not None and claim.owner == ask.owner and claim.generations == known):
        return plan
    return replace(plan, acted_on=known)


def _check_policy(policy: Policy, wanted: Role, around: Surroundings) -> None:
    check_wanted(policy, wanted)
    check_memberships(policy, wanted, around)
    check_parameters(policy, wanted, around)


def _restrain(ask: Ask, sight: Sight, server: Server, policy: Policy, refusal: Refused) -> Plan:
    """The plan for an object that is refused: takes away from its role what others gave it. Raises the refusal."""
    try:
        claim = find_own_claim(ask, sight, server)
    except Refused:
        claim = None  # another's: nothing of it is touched
    target = find_held(claim, sight, server)
    if claim is None or target is None or ask.report_only:
        raise refusal
    wanted, _ = _within_reach(ask.wanted, sight.around)
    drifted = claim.applied == _digest(replace(ask, wanted=wanted))
    left = _leave(ask.ignore, wanted, restrain(policy, target.role, sight.around))
    changes = restraints(policy, replace(left, name=target.role.name), target.role, sight.around, drifted=drifted)
    return Plan(
        role_name=ask.wanted.name,
        changes=changes,
        oid=target.oid,
        seen_as=target.role.name,
        claim=claim,
        owner=ask.owner if changes and target.role.name == ask.wanted.name else None,
        applied=claim.applied,
        drift=field_names(changes),
        pending=(refusal,),
        releases=tuple(former for former in sight.former if former[1] != ask.owner.object_uid),
        deed=Deed.CORRECTED if changes else Deed.NOTHING,
    )


def _within_reach(wanted: Role, around: Surroundings) -> tuple[Role, tuple[PgRoleError, ...]]:
    """What can be brought in now, and what waits: it is not part of what is `applied`, so that it is no drift."""
    missing = [held.role for held in wanted.member_of if held.role not in around.groups]
    nowhere = [database for database, _ in wanted.database_parameters if database not in around.databases]
    pending: list[PgRoleError] = []
    if missing:
        names = _name_some(missing)
        text = f"spec.memberOf: these roles do not exist yet: {names}; everything else matches the spec"
        pending.append(Waiting(Reason.MEMBERSHIP_PENDING, text))
    if nowhere:
        names = _name_some(nowhere)
        text = f"spec.databaseParameters: these databases do not exist yet: {names}; everything else matches the spec"
        pending.append(Waiting(Reason.DATABASE_ERROR, text))
    if not pending:
        return wanted, ()
    return replace(
        wanted,
        member_of=tuple(held for held in wanted.member_of if held.role not in missing),
        database_parameters=tuple(item for item in wanted.database_parameters if item[0] not in nowhere),
    ), tuple(pending)


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(f'"{name}"' for name in names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _leave(ignore: frozenset[str], wanted: Role, there: Role) -> Role:
    """What is wanted, but for the fields that are left to others."""
    if not ignore:
        return wanted
    left = {name: getattr(there, name) for name in ignore}
    return wanted if all(getattr(wanted, name) == value for name, value in left.items()) else replace(wanted, **left)


def decide_absent(sight: Sight) -> Plan:
    """The plan for a key whose object is gone: what it claimed is released, and stays as it is."""
    return Plan(role_name="", releases=sight.former)


def _check_name(ask: Ask, sight: Sight, server: Server, policy: Policy) -> None:
    found = [one for one in (sight.named, sight.claimed) if one]
    check_protected(policy, ask.wanted.name, found, server.own_roles)


def _take_first(ask: Ask, sight: Sight, server: Server, policy: Policy, settled: Settlement) -> Plan:
    """No claim of this object yet: create the role, or adopt it."""
    older = next((rival for rival in ask.older_rivals if _could_have(rival, sight)), None)
    if older is not None and sight.claim is None:
        raise Refused(
            Reason.CONFLICT,
            f'PgRole {older.name} also declares role "{ask.wanted.name}" and is older: delete one of them',
        )
    named = sight.named
    for rival, proof in ask.proven_rivals:
        if sight.claim is None and named and proves(proof, named, server):
            raise Refused(
                Reason.CONFLICT,
                f'role "{ask.wanted.name}" belongs to PgRole {rival}: use another spec.name, or delete one',
            )
    wanted = _leave(ask.ignore, ask.wanted, named.role) if named else ask.wanted
    changes = diff(wanted, named.role if named else None)
    if named:
        _check_adoption(ask, named, changes, settled, policy, sight.around)
    return Plan(
        role_name=ask.wanted.name,
        changes=changes,
        oid=named.oid if named else None,
        seen_as=ask.wanted.name,
        claim=sight.claim,
        owner=ask.owner,
        applied=_digest(ask),
        record=settled.record if settled.record != Record() else None,
        deed=Deed.ADOPTED if named else Deed.CREATED,
    )


def _could_have(rival: Rival, sight: Sight) -> bool:
    """Whether it stands in the way of a younger one: what is refused to it, it holds for nobody."""
    try:
        _check_policy(rival.policy, rival.wanted, sight.around)
        if sight.named:
            check_holds(rival.policy, sight.named, deed="adoption", around=sight.around)
    except PgRoleError:
        return False
    return sight.named is None or (rival.adopt and rival.policy.adopt)


def _check_adoption(
    ask: Ask,
    named: Found,
    changes: tuple[Change, ...],
    settled: Settlement,
    policy: Policy,
    around: Surroundings,
) -> None:
    names = field_names(changes)
    if settled.errand and ask.password.origin in (Origin.SECRET, Origin.GENERATED) and not settled.record.source:
        names = (*names, "password")
    what = f"would change {', '.join(names)}" if names else "would change nothing"
    if not ask.adopt:
        raise Refused(
            Reason.ROLE_EXISTS,
            f'role "{named.role.name}" already exists and this object has no claim to it; adoption {what}. '
            f"To take the role over, set spec.adopt: true; otherwise choose another spec.name",
        )
    if not policy.adopt:
        raise Refused(
            Reason.NOT_ALLOWED,
            "the server's policy does not allow adoption: ask the server's administrator for allow.adopt",
        )
    check_holds(policy, named, deed="adoption", around=around)


def _keep(
    ask: Ask,
    claim: Claim,
    target: Found | None,
    sight: Sight,
    server: Server,
    policy: Policy,
    settled: Settlement,
) -> Plan:
    """The role is this object's: bring in what differs, and say whether somebody else had changed it."""
    applied = _digest(ask)
    # What is left to others is so only as far as the object could have asked for it itself.
    wanted = ask.wanted
    if ask.ignore and target:
        wanted = _leave(ask.ignore, wanted, restrain(policy, target.role, sight.around))
    changes = diff(wanted, target.role if target else None)
    same_server = claim.system_identifier == server.system_identifier
    replaced = same_server and target is not None and target.oid != claim.role_oid
    fields = ("role", *field_names(changes)) if replaced else field_names(changes)
    drift = tuple(name for name in fields if name != "password" or settled.known)
    if claim.applied != applied or claim.released:
        drift = ()
    reported = drift if ask.report_only else ()
    if reported:
        changes = tuple(change for change in changes if change.field not in reported)
        drift = ()
    kept = sight.claim.record if sight.claim else Record()
    record = settled.record if settled.record != kept and "password" not in reported else None
    current = sight.claim == claim and claim.owner == ask.owner and not claim.released and same_server and not replaced
    keeps = (current and claim.applied == applied) or bool(reported)
    return Plan(
        role_name=ask.wanted.name,
        changes=changes,
        oid=target.oid if target else None,
        seen_as=target.role.name if target else ask.wanted.name,
        claim=claim if server.claims == "Status" else sight.claim,
        owner=None if keeps and not changes else ask.owner,
        applied=applied,
        record=record,
        drift=drift,
        reported=(*reported, "connectionSecret") if settled.spoiled else reported,
        deed=_deed(changes, drift, target, settled, claimless=sight.claim is None and server.claims == "Database"),
    )


def _digest(ask: Ask) -> str:
    """The digest of what is kept: what is left to others is not part of it."""
    return digest(_leave(ask.ignore, ask.wanted, Role(ask.wanted.name)))


def _deed(
    changes: tuple[Change, ...], drift: tuple[str, ...], target: Found | None, settled: Settlement, *, claimless: bool
) -> Deed:
    if claimless:
        return Deed.RECLAIMED
    if drift:
        return Deed.CORRECTED
    if settled.rotated and field_names(changes) == ("password",):
        return Deed.ROTATED
    if changes:
        return Deed.CHANGED if target else Deed.CREATED
    return Deed.NOTHING


def find_held(claim: Claim | None, sight: Sight, server: Server) -> Found | None:
    """The role that is the object's for certain, by a claim of this very role; None where there is none."""
    if claim is None or sight.claim != claim or claim.released or claim.system_identifier != server.system_identifier:
        return None
    return next(
        (one for one in (sight.named, sight.claimed) if one and one.oid == claim.role_oid and not one.held_by), None
    )


def restraints(policy: Policy, wanted: Role, there: Role, around: Surroundings, *, drifted: bool) -> tuple[Change, ...]:
    """The changes that take away what `wanted` does not have. `drifted`: all of that is drift for certain."""
    return tuple(
        change
        for change in diff(wanted, there)
        if _is_beyond(policy, change, around) or (drifted and _takes_away(change))
    )


def _is_beyond(policy: Policy, change: Change, around: Surroundings) -> bool:
    """Whether it takes away what no object could ask for."""
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in POWERS and attribute not in policy.attributes
        case RevokeMembership(group=group):
            return why_not_joined(policy, group, around) is not None
        case RevokeOption(group=group, option="admin"):
            return not may_pass_on(policy, group)
    return False


def _takes_away(change: Change) -> bool:
    match change:
        case SetAttribute(attribute=attribute, value=False):
            return attribute in (*POWERS, "login")
        case SetParameter(value=None) | RevokeMembership() | RevokeOption():
            return True
    return False


def generations_of(ask: Ask, server: Server) -> Generations:
    """What is declared, as far as this process knows."""
    return Generations(ask.generation, server.uid, server.generation)


def check_enforceable(ask: Ask, sight: Sight, server: Server) -> None:
    """Raises Transient unless the claim is this object's, and says that what is known here was last acted on."""
    claim = sight.claim
    if ask.terminating or ask.suspended or ask.report_only:
        raise _wait("the object is being deleted or is suspended, or its drift policy is Report")
    if claim is None or claim.owner != ask.owner or claim.released:
        raise _wait("the claim on the role does not belong to this object")
    if claim.system_identifier != server.system_identifier:
        raise _wait("the claim on the role was made on another server")
    if claim.generations != generations_of(ask, server):
        raise _wait("the PgRole or its PgServer has changed since it was last reconciled")


def keep_applied(plan: Plan) -> Plan:
    """The plan as far as it repairs a drift. Raises Transient when it would apply anything new."""
    claim = plan.claim
    if claim is None or plan.applied != claim.applied:
        raise _wait("the spec differs from the state last applied")
    return replace(plan, record=None, errand=None, disown=None, releases=(), forget=False, acted_on=None)


def _wait(why: str) -> Transient:
    return Transient(Reason.PROGRESSING, f"the controller cannot reach Kubernetes and leaves the role unchanged: {why}")
