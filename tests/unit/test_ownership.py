"""core/ownership: a claim that an administrator transferred to this cluster. The rest is in test_plan.py."""

from dataclasses import replace

import pytest

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.ownership import ANY_NAMESPACE
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.role import Membership, ObservedRole, Role, digest
from pgrole_controller.core.state import Desired, Observed, Server

ME = Owner("new", "shop", "new-ns-uid", "orders-app", "new-uid")
BEFORE = Owner("old", "shop", "old-ns-uid", "orders-app", "old-uid")
TRANSFERRED = replace(BEFORE, cluster="new", namespace_uid=ANY_NAMESPACE)
DESIRED = Role("app", login=True)
SERVER = Server(7, frozenset({"keeper"}), Address("db", 5432, "app", "require"))
OID = 20_000


def observed(owner: Owner, *, role: Role = DESIRED, released: bool = False) -> Observed:
    claim = Claim("app", OID, SERVER.system_identifier, owner, applied=digest(DESIRED), released=released)
    return Observed(named=ObservedRole(OID, role), claim=claim)


def look(seen: Observed, owner: Owner = ME, *, adopt: bool = False) -> Plan:
    return decide(Desired(owner=owner, role=DESIRED, adopt=adopt), seen, SERVER, Policy())


def refusal(seen: Observed, owner: Owner = ME, *, adopt: bool = False) -> Reason:
    with pytest.raises(PgRoleError) as caught:
        look(seen, owner, adopt=adopt)
    return caught.value.reason


def test_the_object_with_the_same_key_takes_a_transferred_claim_without_changing_the_role() -> None:
    plan = look(observed(TRANSFERRED))
    assert (plan.owner, plan.changes, plan.drift, plan.action) == (ME, (), (), Action.NOTHING)


def test_changes_made_before_the_claim_is_taken_are_drift_and_corrected() -> None:
    plan = look(observed(TRANSFERRED, role=replace(DESIRED, createdb=True)))
    assert (plan.owner, plan.drift, plan.action) == (ME, ("createdb",), Action.CORRECTED)


def test_a_claim_that_was_taken_is_not_written_again() -> None:
    assert not look(observed(ME)).writes


@pytest.mark.parametrize(
    "other",
    [
        replace(ME, namespace="elsewhere", object_uid="uid"),
        replace(ME, object="orders-app-2", object_uid="uid"),
        replace(ME, namespace="elsewhere", object="orders", object_uid="uid"),
    ],
)
@pytest.mark.parametrize("adopt", [False, True])
def test_no_other_object_takes_a_transferred_claim(other: Owner, adopt: bool) -> None:
    assert refusal(observed(TRANSFERRED), other, adopt=adopt) is Reason.CONFLICT


def test_the_former_cluster_is_refused_as_claimed_elsewhere() -> None:
    assert refusal(observed(TRANSFERRED), BEFORE, adopt=True) is Reason.CLAIMED_ELSEWHERE


def test_a_released_transferred_claim_is_taken_without_adopt_by_its_object_only() -> None:
    other = replace(ME, object="other", object_uid="uid")
    assert look(observed(TRANSFERRED, released=True)).owner == ME
    assert refusal(observed(TRANSFERRED, released=True), other) is Reason.ROLE_EXISTS
    assert look(observed(TRANSFERRED, released=True), other, adopt=True).action is Action.ADOPTED


def test_a_new_namespace_inherits_no_claim_of_its_predecessor() -> None:
    assert (
        refusal(observed(ME, released=True), replace(ME, namespace_uid="tenant", object_uid="uid"))
        is Reason.ROLE_EXISTS
    )
    assert refusal(observed(ME), replace(ME, namespace_uid="tenant", object_uid="uid")) is Reason.CONFLICT


def test_a_retained_role_transferred_with_its_namespace_is_inherited_only_there() -> None:
    kept = replace(BEFORE, cluster="new")
    assert refusal(observed(kept, released=True)) is Reason.ROLE_EXISTS
    assert look(observed(kept, released=True), replace(ME, namespace_uid="old-ns-uid")).owner is not None


def test_after_a_change_of_only_the_cluster_id_the_claim_still_names_the_same_object() -> None:
    same = replace(TRANSFERRED, object_uid=ME.object_uid)
    plan = look(observed(same))
    assert (plan.owner, plan.claim and plan.claim.owner.object_uid) == (ME, ME.object_uid)


def test_a_claim_that_was_not_transferred_is_not_inherited() -> None:
    assert refusal(observed(BEFORE)) is Reason.CLAIMED_ELSEWHERE
    assert refusal(observed(replace(BEFORE, cluster="new"))) is Reason.CONFLICT
    assert refusal(observed(BEFORE, released=True)) is Reason.ROLE_EXISTS


FILES = "pg_read_server_files"
HOLDING = replace(DESIRED, member_of=(Membership(FILES),))


def look_after_restore(policy: Policy, *, oid: int = OID, held: Role = HOLDING) -> Plan:
    """Decides with a claim from another server and a role that reaches the server's files."""
    claim = Claim("app", OID, 99, ME, applied=digest(HOLDING))
    references = References(groups={FILES: (FILES,), "admins": ("root",)})
    seen = Observed(
        named=ObservedRole(oid, held, reaches=tuple(one.role for one in held.member_of)),
        claim=claim,
        references=references,
    )
    return decide(Desired(owner=ME, role=HOLDING), seen, SERVER, policy)


@pytest.mark.parametrize("oid", [OID, OID + 1])
def test_after_a_restore_a_role_that_reaches_only_what_the_policy_names_is_taken_back(oid: int) -> None:
    plan = look_after_restore(Policy(member_of=("*", FILES)), oid=oid)
    assert (plan.owner, plan.changes, plan.oid) == (ME, (), oid)


def test_after_a_restore_a_role_that_reaches_more_is_not_taken_back() -> None:
    held = replace(HOLDING, member_of=(Membership("admins"), Membership(FILES)))
    with pytest.raises(PgRoleError, match="taking the role back is denied"):
        look_after_restore(Policy(member_of=("*", FILES)), held=held)
