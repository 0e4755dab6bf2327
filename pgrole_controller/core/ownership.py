"""Decides who owns a role: by the claim in the database, by status if there is no claim, and never by name alone."""

from pgrole_controller.core.claim import Claim, Owner, Proof
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.policy import Policy, check_within_policy, without_allowed
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Desired, Observed, Server

#: The namespace uid in a claim that an administrator transferred: it fits any namespace of that name, once. The object
#: that takes the claim over writes its own uid.
ANY_NAMESPACE = ""


def check_name_free(observed: Observed) -> None:
    """Raises Refused if the name belongs to another object's renamed role; a rename does not change ownership."""
    named = observed.named
    if named and named.owner_elsewhere:
        raise Refused(
            Reason.NAME_TAKEN,
            f'the role of PgRole {named.owner_elsewhere} was renamed to "{named.role.name}" (oid {named.oid}); '
            f"the controller waits until that role is renamed back",
        )


def find_own_claim(desired: Desired, observed: Observed, server: Server) -> Claim | None:
    """Returns the claim by which the object owns the role, or None. Raises Refused if another object owns it."""
    claim = observed.claim
    if claim is None:
        return _proven(desired, observed, server)
    if claim.is_of_lost_role(observed.named.oid if observed.named else None, server.system_identifier):
        return None
    if claim.owner.object_uid == desired.owner.object_uid and claim.owner.cluster == desired.owner.cluster:
        return claim
    if _same_place(claim.owner, desired.owner):
        return claim  # the object was deleted and created again: it inherits the claim
    if claim.released:
        return None
    if claim.owner.cluster != desired.owner.cluster:
        raise Refused(
            Reason.CLAIMED_ELSEWHERE,
            f'role "{claim.role_name}" is claimed by PgRole {claim.owner} of cluster {claim.owner.cluster}: delete it '
            "there with spec.deletionPolicy: Retain, and set spec.adopt: true here; or ask an administrator to move "
            "the claim (pgrole-controller claims)",
        )
    if (claim.owner.namespace, claim.owner.object) == (desired.owner.namespace, desired.owner.object):
        raise Refused(
            Reason.CONFLICT,
            f'role "{claim.role_name}" is claimed by PgRole {claim.owner} of an earlier namespace '
            f"{claim.owner.namespace}: if it was yours, ask an administrator to transfer the claim (pgrole-controller "
            "claims); otherwise choose another spec.name, in a new object",
        )
    raise Refused(
        Reason.CONFLICT,
        f'role "{claim.role_name}" is claimed by PgRole {claim.owner}: choose another spec.name, in a new object. '
        "Or, to take the role over, delete that PgRole with spec.deletionPolicy: Retain, and set spec.adopt: true here",
    )


def _same_place(claimed: Owner, owner: Owner) -> bool:
    if claimed.namespace_uid not in (owner.namespace_uid, ANY_NAMESPACE):
        return False
    return (claimed.cluster, claimed.namespace, claimed.object) == (owner.cluster, owner.namespace, owner.object)


def _proven(desired: Desired, observed: Observed, server: Server) -> Claim | None:
    """Derives ownership from status, if the role carries no claim at all (schema pgrole was dropped)."""
    proof, named = desired.proof, observed.named
    if proof is None or named is None or not proves(proof, named, server):
        return None
    return Claim(
        role_name=proof.role_name,
        role_oid=proof.role_oid,
        system_identifier=proof.system_identifier,
        owner=desired.owner,
        applied=proof.applied,
        # Only the Secret's version is known, so it is read once again.
        record=PasswordRecord(source=f"?/{proof.password_version}" if proof.password_version else ""),
        approve_handled=proof.approve_handled,
        counted=proof.drift_count,
    )


def had_role(desired: Desired, observed: Observed, server: Server, applied: str) -> bool:
    """Tells whether status says that this very declaration was applied to a role here that no longer exists, if the
    database holds no claim on it.
    """
    proof = desired.proof
    if proof is None or observed.named is not None or observed.claim is not None:
        return False
    said = (proof.role_name, proof.system_identifier, proof.applied)
    return said == (desired.role.name, server.system_identifier, applied)


def proves(proof: Proof, named: ObservedRole, server: Server) -> bool:
    seen = (named.role.name, named.oid, server.system_identifier)
    return (proof.role_name, proof.role_oid, proof.system_identifier) == seen


def find_certain_role(claim: Claim | None, observed: Observed, server: Server) -> ObservedRole | None:
    """Returns the role that certainly belongs to the object, by a claim on this very oid; else None."""
    if (
        claim is None
        or observed.claim != claim
        or claim.released
        or claim.system_identifier != server.system_identifier
    ):
        return None
    return next(
        (
            one
            for one in (observed.named, observed.claimed)
            if one and one.oid == claim.role_oid and not one.owner_elsewhere
        ),
        None,
    )


def find_target(claim: Claim, observed: Observed, server: Server, policy: Policy) -> ObservedRole | None:
    """Returns the role that the claim is about, or None.

    A role without a claim in the database must pass the checks of adoption, because status could be forged.
    """
    named, claimed = observed.named, observed.claimed
    same_server = claim.system_identifier == server.system_identifier
    known = observed.claim is not None and same_server and not claim.released
    if named and known and named.oid == claim.role_oid:
        return named
    if claimed and same_server and (named is None or named.oid != claim.role_oid):
        if named is None:
            return claimed
        raise Refused(
            Reason.NAME_TAKEN,
            f'the role of this object was renamed to "{claimed.role.name}" (oid {claimed.oid}), and another role '
            f'(oid {named.oid}) now has the name "{named.role.name}": rename or drop one of them',
        )
    if named:
        check_within_policy(policy, without_allowed(policy, named, observed.references), action="taking the role back")
    return named
