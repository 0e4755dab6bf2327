"""controller/privileges/privilege_approval: when an approval acts in one database. No I/O."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from pgrole_controller.controller.privileges.privilege_approval import consider_approval
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.controller.privileges.privilege_records import RoundRecords, UnrecordedDrifts
from pgrole_controller.controller.privileges.role_memory import AppliedState, RoleMemory
from pgrole_controller.core.approval import Approval, read_approval
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.acl_comparison import RememberedObjects
from pgrole_controller.core.privileges.acl_decision import decide_privileges
from pgrole_controller.core.privileges.awaited_privileges import AppliedDeclaration
from pgrole_controller.core.privileges.grantee import Grantee, Refusal
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from tests.unit.test_acl_decision import TABLE, entry, grantee, make, observe


@dataclass(frozen=True, slots=True)
class StillSession:
    """What the decision depends on."""

    stores: bool = True
    enforcing: bool = False
    database: str = "orders"
    identity: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(system_identifier=7))


def as_session(session: StillSession) -> DatabaseSession:
    return cast("DatabaseSession", session)


def reporting(**values: object) -> Grantee:
    return replace(grantee(), report_only=True, **values)  # type: ignore[arg-type]


DRIFTED = observe((TABLE, (entry("SELECT"), entry("DELETE"))))


def consider(
    one: Grantee, observed: ObservedDatabase = DRIFTED, session: StillSession | None = None, handled: str = ""
) -> PrivilegeProgress:
    applied = AppliedState(one.digest_of("orders"), 0, handled)
    decision = decide_privileges(one, observed, applied.declaration, new_objects=frozenset())
    progress = PrivilegeProgress(one, RoleMemory("uid-1"), applied, decision)
    consider_approval(progress, observed, frozenset(), RememberedObjects(), as_session(session or StillSession()))
    return progress


def offered(**values: object) -> Approval:
    offer = consider(reporting(**values)).role.offer
    assert offer is not None
    return read_approval(f"{offer.digest}/x")


def test_nothing_is_offered_while_the_object_is_refused() -> None:
    """What the role misses could not be granted."""
    one = consider(reporting(refused=Refusal.KNOWN))
    assert [difference.privilege for difference in one.decision.reported] == ["DELETE"]
    assert one.role.offer is None


def test_reported_drift_is_offered_and_an_approval_corrects_it() -> None:
    approval = offered()
    one = consider(reporting(approval=approval))
    assert one.approval == approval
    assert [change.privileges for change in one.decision.changes] == [("DELETE",)]
    assert one.role.offer is None
    records = RoundRecords(as_session(StillSession()), UnrecordedDrifts(), "c1", HistoryConfig())
    *_, last = records.build([one]).split(";\n")
    assert last == f"SELECT pgrole.store_approval(16400, 'uid/orders', '{approval.value}')"


@pytest.mark.parametrize(
    "session", [StillSession(enforcing=True), StillSession(stores=False), StillSession(database="other")]
)
def test_an_approval_has_no_effect_in_an_outage_without_storage_or_in_another_database(session: StillSession) -> None:
    one = consider(reporting(approval=offered()), session=session)
    assert one.approval is None
    assert one.decision.changes == ()


def test_a_handled_approval_does_not_act_again() -> None:
    approval = offered()
    one = consider(reporting(approval=approval), handled=approval.value)
    assert one.approval is None
    assert one.role.offer is not None


def test_an_approval_does_not_hold_for_another_generation_or_a_partial_read() -> None:
    approval = offered()
    assert consider(reporting(approval=approval, generation=9)).approval is None
    one = consider(reporting(approval=approval), replace(DRIFTED, complete=False))
    assert (one.approval, one.role.offer) == (None, None)


def test_drift_is_offered_although_postgresql_refuses_something_else() -> None:
    one, other = reporting(), make("other", oid=20001)
    waits = {PrivilegeDifference("SELECT", other, held=False).mark}
    applied = AppliedState(AppliedDeclaration(one.digest_of("orders")).add(waits).text)
    observed = observe((TABLE, (entry("SELECT"), entry("DELETE"))), (other, ()))
    decision = decide_privileges(one, observed, applied.declaration, new_objects=frozenset())
    assert [change.object for change in decision.changes] == [other]
    for failure in (None, Transient(Reason.DATABASE_ERROR, "must be owner of table other")):
        progress = PrivilegeProgress(one, RoleMemory("uid-1", failure=failure), applied, decision)
        consider_approval(progress, observed, frozenset(), RememberedObjects(), as_session(StillSession()))
        shown = () if progress.role.offer is None else progress.role.offer.changes
        assert shown == (() if failure is None else ("DELETE on table app.orders was granted",))


def test_nothing_is_offered_under_policy_correct() -> None:
    one = consider(replace(grantee(), approval=offered()))
    assert (one.approval, one.role.offer) == (None, None)
