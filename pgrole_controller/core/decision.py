"""Decides about one object: who owns the role, what changes, and which claims are written or released.

`decide` takes the desired and the observed state, and returns a plan or raises PgRoleError. It has no memory:
every reconcile calls it again, and after a plan was applied it returns one without changes.

If the object is refused, its role gains nothing and loses what others granted it. Otherwise, anyone could keep an
excess grant by having the object refused for some other reason. What the object itself declares stays, allowed or not:
tightening a policy takes nothing away from existing roles. Undeclared grants are revoked if they are certainly drift
(the spec equals the one last applied) or exceed the policy. If the spec has changed since, the other differences
are ambiguous, and the controller does not apply half of a spec.

While Kubernetes is unreachable, only what was applied before is maintained: see enforcement.
"""

from collections.abc import Sequence
from dataclasses import replace

from pgrole_controller.core.adoption import check_adoption, check_retained
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.deletion import decide_deletion
from pgrole_controller.core.diff import Change, describe_cascades, diff, field_names
from pgrole_controller.core.enforcement import check_enforceable, keep_applied, note_generations
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.maintained import digest_maintained, excess_changes, without_ignored, without_missing
from pgrole_controller.core.owned_role import OwnedRole, plan_owned
from pgrole_controller.core.ownership import (
    check_name_free,
    find_certain_role,
    find_own_claim,
    find_target,
    had_role,
    proves,
)
from pgrole_controller.core.password import PasswordOrigin, PasswordRecord
from pgrole_controller.core.password_rules import PasswordDecision, decide_password
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import (
    Policy,
    References,
    check_admitted,
    check_desired,
    check_memberships,
    check_parameters,
    check_protected,
    check_within_policy,
    limit_to_policy,
)
from pgrole_controller.core.privileges.kept_privileges import keep_privileges
from pgrole_controller.core.role import ObservedRole, Role
from pgrole_controller.core.state import Desired, Observed, Rival, Server

#: Maximum number of reads and decisions of one reconcile: others of a batch can join a role that was just created in
#: the next round.
ROUNDS = 4


def decide(
    desired: Desired, observed: Observed, server: Server, policy: Policy, refusal: PgRoleError | None = None
) -> Plan:
    """Returns the plan for one reconcile. Raises PgRoleError if nothing may be done.

    `refusal`: PostgreSQL has rejected the plan for this spec, with this error.
    """
    if server.enforcing:
        check_enforceable(desired, observed, server)
        return keep_applied(_decide(desired, observed, server, policy, refusal))
    plan = note_generations(_decide(desired, observed, server, policy, refusal), desired, observed, server)
    return keep_privileges(plan, desired, observed, server)


def _decide(desired: Desired, observed: Observed, server: Server, policy: Policy, refusal: PgRoleError | None) -> Plan:
    if desired.terminating:
        return decide_deletion(desired, observed, server, policy)
    if desired.suspended:
        raise Refused(Reason.SUSPENDED, "spec.suspend is true: the controller neither compares nor changes the role")
    _check_name(desired, observed, server, policy)
    check_name_free(observed)
    refusal = refusal or desired.refusal or _find_refusal(policy, desired.role, observed.references)
    if refusal is not None:
        return _revoke_excess(desired, observed, server, policy, refusal)
    return _plan_accepted(desired, observed, server, policy)


def _plan_accepted(desired: Desired, observed: Observed, server: Server, policy: Policy) -> Plan:
    """Plans for an object that is not refused. Leaves out what refers to something that is missing: that is pending."""
    role, missing = without_missing(desired.role, observed.references)
    present = desired if role is desired.role else replace(desired, role=role)
    claim = find_own_claim(present, observed, server)
    target = find_target(claim, observed, server, policy) if claim else observed.named
    if claim and claim.released:
        check_retained(present, observed, server, policy)
    decided = decide_password(present, claim, target, observed, server, policy)
    present = _with_password(present, decided)
    if claim is None:
        plan = _plan_new(present, observed, server, policy, decided)
    else:
        differences = diff(_leave_ignored(present, target, observed, policy), target.role if target else None)
        applied = digest_maintained(present)
        plan = plan_owned(OwnedRole(present, claim, target, observed, server, decided, applied, differences))
    releases = observed.find_left_behind(desired.owner.object_uid)
    pending = tuple(error for name, error in missing.items() if target is None or name not in desired.ignore)
    if decided.pending:
        pending = (*pending, decided.pending)
    if not (pending or decided.password_task or releases):
        return plan
    return replace(plan, pending=pending, password_task=decided.password_task, releases=releases)


def _with_password(desired: Desired, decided: PasswordDecision) -> Desired:
    """Returns the object with the password that its role is to have, or that is left to others."""
    if decided.left:
        return replace(desired, ignore=desired.ignore | {"password"})
    if decided.password is desired.role.password and "password" not in desired.ignore:
        return desired
    role = replace(desired.role, password=decided.password)
    return replace(desired, role=role, ignore=desired.ignore - {"password"})


def _find_refusal(policy: Policy, desired_role: Role, references: References) -> Refused | None:
    try:
        _check_policy(policy, desired_role, references)
    except Refused as refusal:
        return refusal
    return None


def _check_policy(policy: Policy, desired_role: Role, references: References) -> None:
    check_desired(policy, desired_role)
    check_memberships(policy, desired_role, references)
    check_parameters(policy, desired_role, references)


def _revoke_excess(desired: Desired, observed: Observed, server: Server, policy: Policy, refusal: PgRoleError) -> Plan:
    """Returns the plan for a refused object: it revokes what others gave the role. Raises the refusal if that may not
    be done.
    """
    try:
        claim = find_own_claim(desired, observed, server)
    except Refused:
        claim = None  # another object's claim: touch nothing
    target = find_certain_role(claim, observed, server)
    if claim is not None and observed.claim is None:
        target = _take_back(desired, claim, observed, server, policy, refusal)
    if claim is None or target is None:
        raise refusal
    desired_role, _ = without_missing(desired.role, observed.references)
    drifted = claim.applied == digest_maintained(replace(desired, role=desired_role))
    kept = _leave_ignored(replace(desired, role=desired_role), target, observed, policy)
    changes = excess_changes(
        policy, replace(kept, name=target.role.name), target.role, observed.references, drifted=drifted
    )
    if desired.report_only:
        raise _add_reported(refusal, field_names(changes))
    return Plan(
        role_name=desired.role.name,
        changes=changes,
        oid=target.oid,
        seen_as=target.role.name,
        claim=server.find_expected_claim(claim, observed),
        owner=desired.owner if changes and target.role.name == desired.role.name else None,
        applied=claim.applied,
        drift=field_names(changes),
        pending=(refusal,),
        releases=observed.find_left_behind(desired.owner.object_uid),
        action=Action.CORRECTED if changes else Action.NOTHING,
        refused=True,
    )


def _take_back(
    desired: Desired, claim: Claim, observed: Observed, server: Server, policy: Policy, refusal: PgRoleError
) -> ObservedRole | None:
    """Returns the role that status proves, as an accepted object would take it back. Raises the refusal if it could
    not.
    """
    try:
        check_admitted(policy, desired.role.name)
    except Refused:
        raise refusal from None
    try:
        return find_target(claim, observed, server, policy)
    except Refused as denial:
        raise refusal.extend(f"In addition, {denial.message}") from denial


def _add_reported(refusal: PgRoleError, fields: Sequence[str]) -> PgRoleError:
    """Adds the fields that hold what others gave the role; the refusal itself without any."""
    if not fields:
        return refusal
    what = f"drift is detected but not corrected, since spec.drift.policy is Report: {', '.join(fields)}"
    return refusal.extend(f"In addition, {what}")


def decide_absent(observed: Observed) -> Plan:
    """Returns the plan for a key without an object: releases its claims and leaves the roles unchanged."""
    return Plan(role_name="", releases=observed.other_claims)


def _check_name(desired: Desired, observed: Observed, server: Server, policy: Policy) -> None:
    found = [one for one in (observed.named, observed.claimed) if one]
    try:
        check_protected(policy, desired.role.name, found, server.own_roles)
    except Refused as refusal:
        raise refusal.extend("Choose another spec.name, in a new object") from refusal


def _plan_new(desired: Desired, observed: Observed, server: Server, policy: Policy, decided: PasswordDecision) -> Plan:
    """Plans for an object without a claim: creates the role, or adopts it."""
    applied = digest_maintained(desired)
    if desired.report_only and had_role(desired, observed, server, applied):
        return Plan(role_name=desired.role.name, reported=("role",))
    older = next((rival for rival in desired.older_rivals if _blocks(rival, observed)), None)
    if older is not None:
        raise Refused(
            Reason.CONFLICT,
            f'PgRole {older.name} also declares role "{desired.role.name}" and is older: choose another spec.name, '
            "in a new object, or suspend or delete that PgRole",
        )
    named = observed.named
    for rival, proof in desired.proven_rivals:
        if observed.claim is None and named and proves(proof, named, server):
            raise Refused(
                Reason.CONFLICT,
                f'role "{desired.role.name}" belongs to PgRole {rival}, as its status proves: choose another '
                "spec.name, in a new object",
            )
    changes = diff(_leave_ignored(desired, named, observed, policy), named.role if named else None)
    if named:
        _check_adoption(desired, named, changes, decided, observed, server, policy)
    return Plan(
        role_name=desired.role.name,
        changes=changes,
        oid=named.oid if named else None,
        seen_as=desired.role.name,
        claim=observed.claim,
        owner=desired.owner,
        applied=applied,
        record=decided.record if decided.record != PasswordRecord() else None,
        action=Action.ADOPTED if named else Action.CREATED,
    )


def _leave_ignored(desired: Desired, existing: ObservedRole | None, observed: Observed, policy: Policy) -> Role:
    """Returns the declared role, with the ignored fields of the existing one. Such a field is left alone only as far as
    the object could have declared its value.
    """
    if existing is None or not desired.ignore:
        return desired.role
    left = limit_to_policy(policy, existing.role, observed.references)
    return without_ignored(desired.ignore, desired.role, left)


def _blocks(rival: Rival, observed: Observed) -> bool:
    """Tells whether this older object blocks a younger one. An object that would be refused reserves nothing."""
    try:
        _check_policy(rival.policy, rival.role, observed.references)
        if observed.named:
            check_within_policy(rival.policy, observed.named, action="adoption", references=observed.references)
    except PgRoleError:
        return False
    return observed.named is None or (rival.adopt and rival.policy.adopt)


def _check_adoption(
    desired: Desired,
    named: ObservedRole,
    changes: tuple[Change, ...],
    decided: PasswordDecision,
    observed: Observed,
    server: Server,
    policy: Policy,
) -> None:
    names = field_names(changes)
    if (
        decided.password_task
        and desired.password.origin in (PasswordOrigin.SECRET, PasswordOrigin.GENERATED)
        and not decided.record.source
    ):
        names = (*names, "password")
    check_adoption(desired, named, names, describe_cascades(changes), observed, server, policy)
