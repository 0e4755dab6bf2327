"""core/simulation: a role that one object creates exists for the others."""

from dataclasses import replace

import pytest

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide as really_decide
from pgrole_controller.core.diff import Create, GrantMembership, RevokeMembership
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, internal_error
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy, Reached, References
from pgrole_controller.core.role import Membership, Role
from pgrole_controller.core.simulation import SimulatedObject, Simulation, refuse_cycles, simulate, split_late
from pgrole_controller.core.state import Desired, Observed, Server

SERVER = Server(1, frozenset({"controller"}), Address("host", 5432, "postgres", "disable"))
POLICY = Policy(attributes=frozenset({"createdb", "superuser"}))


def one(name: str, *groups: str, policy: Policy = POLICY, superuser: bool = False) -> SimulatedObject:
    role = Role(name, superuser=superuser, member_of=tuple(Membership(group) for group in sorted(groups)))
    return SimulatedObject(Desired(Owner("cluster", "shop", "ns", name, f"uid-{name}"), role), Observed(), policy)


def joined(simulation: Simulation, place: int) -> list[str]:
    plan = simulation.decisions[place]
    assert isinstance(plan, Plan)
    return [change.membership.role for change in plan.changes if isinstance(change, GrantMembership)]


def test_a_chain_of_memberships_is_joined_in_any_order() -> None:
    for objects in ([one("a", "b"), one("b", "c"), one("c")], [one("c"), one("b", "c"), one("a", "b")]):
        found = simulate(objects, SERVER, internal_error)
        assert set(found.created) == {"a", "b", "c"}
        assert sorted(group for place in range(3) for group in joined(found, place)) == ["b", "c"]


def test_a_group_that_no_object_creates_is_still_pending() -> None:
    found = simulate([one("a", "b", "nowhere"), one("b")], SERVER, internal_error)
    assert joined(found, 0) == ["b"]
    plan = found.decisions[0]
    assert isinstance(plan, Plan)
    assert [error.reason for error in plan.pending] == [Reason.MEMBERSHIP_PENDING]


def test_a_new_superuser_cannot_be_joined_by_a_pattern() -> None:
    found = simulate([one("a", "b"), one("b", superuser=True)], SERVER, internal_error)
    plan = found.decisions[0]
    assert isinstance(plan, Plan)
    assert [type(change) for change in plan.changes] == [Create], "as in the controller's first round"
    assert isinstance(plan.pending[0], Refused)
    named = replace(POLICY, member_of=("b",))
    assert joined(simulate([one("a", "b", policy=named), one("b", superuser=True)], SERVER, internal_error), 0) == ["b"]


def test_existing_roles_that_a_new_role_reaches_count() -> None:
    references = References(groups={"files": ("pg_read_server_files",)}, reached={"files": (Reached("files"),)})
    low = one("a", "b")
    middle = one("b", "files", policy=replace(POLICY, member_of=("*", "files", "pg_read_server_files")))
    middle = replace(middle, observed=Observed(references=references))
    plan = simulate([low, middle], SERVER, internal_error).decisions[0]
    assert isinstance(plan, Plan)
    assert "pg_read_server_files" in plan.pending[0].message


def test_an_error_of_one_object_does_not_affect_others() -> None:
    error = Transient(Reason.DATABASE_ERROR, "not readable")
    found = simulate([replace(one("a"), observed=error), one("b")], SERVER, internal_error)
    assert found.decisions[0] is error
    assert isinstance(found.decisions[1], Plan)


def test_an_unexpected_error_is_worded_by_the_caller_and_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decide(desired: Desired, observed: Observed, server: Server, policy: Policy) -> Plan | PgRoleError:
        if desired.role.name == "a":
            raise ZeroDivisionError
        return really_decide(desired, observed, server, policy)

    monkeypatch.setattr("pgrole_controller.core.simulation.decide", decide)
    said = Transient(Reason.INTERNAL_ERROR, "as the command words it")
    found = simulate([one("a"), one("b")], SERVER, lambda _: said)
    assert found.decisions[0] is said
    assert isinstance(found.decisions[1], Plan)


def test_memberships_in_new_roles_are_late_changes() -> None:
    found = simulate([one("a", "b"), one("b")], SERVER, internal_error)
    plan = found.decisions[0]
    assert isinstance(plan, Plan)
    early, late = split_late(plan.changes, found.created)
    assert [type(change) for change in early] == [Create]
    assert [type(change) for change in late] == [GrantMembership]


def test_the_last_membership_of_a_cycle_among_new_roles_is_refused() -> None:
    found = simulate([one("a", "b"), one("b", "c"), one("c", "a")], SERVER, internal_error)
    assert [joined(found, place) for place in range(3)] == [["b"], ["c"], []]
    last = found.decisions[2]
    assert isinstance(last, Plan)
    assert [type(change) for change in last.changes] == [Create]
    assert (last.pending[0].reason, 'role "a" is a member of role "c"' in last.pending[0].message) == (
        Reason.INVALID_SPEC,
        True,
    )


def test_a_cycle_through_an_existing_membership_is_refused_unless_the_plan_may_end_it() -> None:
    references = References(reached={"group": (Reached("group"), Reached("app"))})
    joins = Plan("app", changes=(GrantMembership("app", Membership("group")),))
    (refused,) = refuse_cycles([joins], references, {})
    assert isinstance(refused, Refused)
    assert 'role "group" is a member of role "app"' in refused.message
    leaves = Plan("group", changes=(RevokeMembership("group", "app", ("postgres",)),))
    assert refuse_cycles([joins, leaves], references, {}) == (joins, leaves)
    assert refuse_cycles([Plan("other", changes=joins.changes)], references, {})[0] != refused
