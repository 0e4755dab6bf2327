"""Plans for an object that owns its role: which differences are drift, what is done about it, what the claim records.

Drift is corrected. Under policy Report it is reported instead, and corrected once a person approves that.
"""

from dataclasses import dataclass, replace

from pgrole_controller.core.approval import Approval, RoleOffer, digest_role_drift
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.diff import Change, field_names
from pgrole_controller.core.enforcement import has_same_spec
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.password_rules import PasswordDecision
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.role import FIELD_NAMES, ObservedRole
from pgrole_controller.core.state import Desired, Observed, Server


@dataclass(frozen=True, slots=True)
class OwnedRole:
    """A role and the object that owns it.

    - `claim`: by which the object owns the role.
    - `target`: the role; None if it does not exist.
    - `password`: what was decided about the password.
    - `applied`: digest of what the object declares.
    - `differences`: the changes that make the role as declared.
    """

    desired: Desired
    claim: Claim
    target: ObservedRole | None
    observed: Observed
    server: Server
    password: PasswordDecision
    applied: str
    differences: tuple[Change, ...]

    @property
    def is_replaced(self) -> bool:
        """Whether another role now has the name of the claimed one."""
        same_server = self.claim.system_identifier == self.server.system_identifier
        return same_server and self.target is not None and self.target.oid != self.claim.role_oid

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that differ; `role` is one of them if it does not exist or was replaced."""
        names = field_names(self.differences)
        return ("role", *names) if self.is_replaced else names

    @property
    def is_recorded(self) -> bool:
        """Whether the claim in the database is this object's, about this very role, with what the object declares."""
        claim, server = self.claim, self.server
        current = self.observed.claim == claim and claim.is_held_by(self.desired.owner)
        same_role = claim.system_identifier == server.system_identifier and not self.is_replaced
        return current and same_role and claim.applied == self.applied


@dataclass(frozen=True, slots=True)
class _DriftDecision:
    """`changes` are applied: they correct the drift of the fields `corrected`, and leave that of `reported`."""

    changes: tuple[Change, ...]
    corrected: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    offer: RoleOffer | None = None
    approval: Approval | None = None

    @property
    def leaves_role(self) -> bool:
        """Whether nothing at all changes."""
        return _is_elsewhere(self.reported)


def plan_owned(owned: OwnedRole) -> Plan:
    """Applies the differences, and reports which of them are drift."""
    desired, claim, target, password = owned.desired, owned.claim, owned.target, owned.password
    drift = _decide_drift(owned)
    owner = None if (owned.is_recorded or drift.leaves_role) and not drift.changes else desired.owner
    is_open = desired.approval.is_open(claim.approve_handled)
    return Plan(
        role_name=desired.role.name,
        changes=drift.changes,
        oid=target.oid if target else None,
        seen_as=target.role.name if target else desired.role.name,
        claim=owned.server.find_expected_claim(claim, owned.observed),
        owner=owner,
        applied=owned.applied,
        record=_find_record(owned, drift.changes, owner),
        drift=drift.corrected,
        reported=(*drift.reported, *_find_spoiled(owned)),
        approval=drift.approval,
        offer=drift.offer,
        unfit=drift.offer is not None and password.password_task is None and is_open,
        action=_find_action(owned, drift),
        rotated=password.rotated,
    )


def _decide_drift(owned: OwnedRole) -> _DriftDecision:
    desired, claim, password = owned.desired, owned.claim, owned.password
    drift = tuple(name for name in _find_drift(owned, owned.fields) if name != "password" or password.known)
    if not (drift and desired.report_only):
        return _DriftDecision(owned.differences, corrected=drift)
    offer = _find_offer(owned, drift)
    # What a password task finds may be drift, too.
    if offer and password.password_task is None and desired.approval.covers(offer.digest, claim.approve_handled):
        return _DriftDecision(owned.differences, corrected=drift, approval=desired.approval)
    if _is_elsewhere(drift):  # then nothing changes, not even a password that is no drift
        return _DriftDecision((), reported=drift, offer=offer)
    changes = tuple(change for change in owned.differences if change.field not in drift)
    return _DriftDecision(changes, reported=drift, offer=offer)


def _find_drift(owned: OwnedRole, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Returns those of the fields that differ which someone else changed."""
    desired, claim = owned.desired, owned.claim
    if claim.released:
        return ()
    if claim.applied == owned.applied:
        return fields
    if not (desired.report_only and has_same_spec(desired, claim, owned.server)):
        return ()
    # A role or database that the spec names appeared or was dropped: that corrects nothing else.
    if _is_elsewhere(fields):
        return fields
    return tuple(name for name in fields if name not in ("memberOf", "databaseParameters"))


def _is_elsewhere(fields: tuple[str, ...]) -> bool:
    """Tells whether no role has the declared name and the claimed oid."""
    return "role" in fields or "name" in fields


def _find_spoiled(owned: OwnedRole) -> tuple[str, ...]:
    """Returns what is reported of a connection Secret that someone else changed: no approval corrects it."""
    spoiled: tuple[str, ...] = ("connectionSecret",) if owned.password.spoiled else ()
    if owned.password.altered and _find_drift(owned, ("password",)):
        return ("password", *spoiled)
    return spoiled


def _find_offer(owned: OwnedRole, reported: tuple[str, ...]) -> RoleOffer | None:
    """Returns the reported drift with the digest by which a person approves its correction; None if no one can."""
    desired, claim, target, server = owned.desired, owned.claim, owned.target, owned.server
    if not server.keeps_approvals:
        return None
    place = (
        server.system_identifier,
        desired.owner.object_uid,
        desired.generation,
        claim.role_oid,
        target.oid if target else 0,
        reported,
    )
    observed = {name: getattr(target.role, name) for name, field in FIELD_NAMES.items() if target and field in reported}
    made = [change for change in owned.differences if change.field in reported]
    return RoleOffer(digest_role_drift(place, made, observed, claim.record.digest), reported)


def _find_record(owned: OwnedRole, changes: tuple[Change, ...], owner: Owner | None) -> PasswordRecord | None:
    """Returns what the claim is to record of the password; None if that stays as it is."""
    kept = owned.observed.claim.record if owned.observed.claim else PasswordRecord()
    # A password that is not set is not recorded, but the connection Secret was written.
    unset = "password" in owned.fields and "password" not in field_names(changes)
    new = replace(kept, connection=owned.password.record.connection) if unset else owned.password.record
    # Taking a claim over resets a part of the former owner's record.
    is_taken = owner is not None and owned.claim.owner != owner
    return new if new != kept or is_taken else None


def _find_action(owned: OwnedRole, drift: _DriftDecision) -> Action:
    if owned.server.find_expected_claim(owned.claim, owned.observed) is None:
        return Action.RECLAIMED
    if drift.corrected:
        return Action.CORRECTED
    if owned.password.rotated and field_names(drift.changes) == ("password",):
        return Action.ROTATED
    if drift.changes:
        return Action.CHANGED if owned.target else Action.CREATED
    return Action.NOTHING
