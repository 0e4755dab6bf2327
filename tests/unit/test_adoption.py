"""core/adoption: an existing role is taken over on what its object's databases have answered, and on nothing less."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.decision import decide
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.privileges.grantee import Grantee, PrivilegePolicy, Takeover
from pgrole_controller.core.privileges.privilege_result import AdoptionFindings, PrivilegeResult
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Desired, Observed, Server
from tests.unit.test_kept_privileges import KEY, LAKE, ME, OID, READ, ROLE, SERVER, STATUS_SERVER, WRITE, desired

POLICY = Policy(privileges=PrivilegePolicy(databases=("*",)))
THERE = References(databases=frozenset({"orders", "lake"}))
SEEN = Observed(named=ObservedRole(OID, ROLE), references=THERE, owned=frozenset({20_001}))
WITHIN = AdoptionFindings(("DELETE on table app.orders",), 3)
BEYOND = AdoptionFindings((), 0, ("SELECT on table hr.people", "USAGE on type app.state"), 7)
ASKED = desired(READ, LAKE, adopt=True)
RELEASED = Claim("app", OID, 7, ME, "sha256:x", released=True, privileges={"orders": (READ,), "old": (LAKE,)})


def adoptee(asked: Desired = ASKED, observed: Observed = SEEN, policy: Policy = POLICY) -> Grantee:
    found = find_adoptee(asked, observed, SERVER, policy)
    assert found is not None
    return found


def answer(asked: Desired, answers: Mapping[str, AdoptionFindings | PgRoleError], observed: Observed = SEEN) -> Desired:
    one = adoptee(asked, observed)
    results = {
        name: PrivilegeResult(KEY, one.uid, name, one.digest_of(name), adoption=found)
        if isinstance(found, AdoptionFindings)
        else PrivilegeResult(KEY, one.uid, name, one.digest_of(name), found)
        for name, found in answers.items()
    }
    return replace(asked, privilege_results=results)


def refuse(asked: Desired, observed: Observed = SEEN, policy: Policy = POLICY, server: Server = SERVER) -> PgRoleError:
    with pytest.raises(PgRoleError) as caught:
        decide(asked, observed, server, policy)
    return caught.value


class TestWhetherItIsAdopted:
    def test_it_waits_until_every_database_has_answered(self) -> None:
        error = refuse(ASKED)
        assert (type(error), error.reason) == (Transient, Reason.PROGRESSING)
        assert 'adoption waits for database "lake" (and in 1 more)' in error.message
        assert 'waits for database "lake", in which' in refuse(answer(ASKED, {"orders": WITHIN})).message
        plan = decide(answer(ASKED, {"orders": WITHIN, "lake": WITHIN}), SEEN, SERVER, POLICY)
        assert plan.action is Action.ADOPTED

    def test_a_database_in_which_it_holds_nothing_need_not_answer(self) -> None:
        observed = replace(SEEN, unheld=frozenset({"lake"}))
        assert decide(answer(ASKED, {"orders": WITHIN}), observed, SERVER, POLICY).action is Action.ADOPTED
        both = replace(SEEN, unheld=frozenset({"lake", "orders"}))
        assert decide(ASKED, both, SERVER, POLICY).action is Action.ADOPTED

    def test_without_privileges_it_is_adopted_at_once(self) -> None:
        assert decide(desired(adopt=True), SEEN, SERVER, POLICY).action is Action.ADOPTED
        assert find_adoptee(desired(adopt=True), SEEN, SERVER, POLICY) is None

    def test_privileges_beyond_the_policy_deny_it_at_once(self) -> None:
        error = refuse(answer(ASKED, {"orders": BEYOND}))
        assert (type(error), error.reason) == (Refused, Reason.NOT_ALLOWED)
        assert error.message == (
            'adoption is denied: role "app" has privileges that this object could not declare '
            "(SELECT on table hr.people (database orders), USAGE on type app.state (database orders) and 5 more): ask "
            "an administrator to revoke them first, or to allow them in PgServer.spec.allow.privileges"
        )

    @pytest.mark.parametrize(
        "stale",
        [
            answer(desired(WRITE, LAKE, adopt=True), {"orders": WITHIN, "lake": WITHIN}),
            answer(ASKED, {"orders": WITHIN, "lake": WITHIN}, replace(SEEN, owned=frozenset({20_001, 20_002}))),
            answer(ASKED, {"orders": WITHIN, "lake": WITHIN}, replace(SEEN, named=ObservedRole(OID + 1, ROLE))),
        ],
        ids=["declaration", "owners", "role"],
    )
    def test_an_answer_about_something_else_is_none(self, stale: Desired) -> None:
        assert refuse(replace(ASKED, privilege_results=stale.privilege_results)).reason is Reason.PROGRESSING

    def test_an_answer_under_another_policy_is_none(self) -> None:
        asked = answer(ASKED, {"orders": WITHIN, "lake": WITHIN})
        narrowed = replace(POLICY, privileges=replace(POLICY.privileges, rules=()))
        assert refuse(asked, policy=narrowed).reason is Reason.PROGRESSING

    def test_a_database_that_cannot_be_reached_is_named_with_the_reason(self) -> None:
        error = refuse(answer(ASKED, {"orders": WITHIN, "lake": Transient(Reason.SERVER_NOT_READY, "timed out")}))
        assert (type(error), error.reason) == (Transient, Reason.PROGRESSING)
        assert error.message.endswith('database "lake", in which role "app" has privileges: timed out')

    def test_a_database_that_no_worker_may_serve_denies_it(self) -> None:
        policy = replace(POLICY, privileges=PrivilegePolicy(databases=("orders",)))
        error = refuse(ASKED, policy=policy)
        assert (type(error), error.reason) == (Refused, Reason.NOT_ALLOWED)
        assert 'privileges in database "lake", and the controller cannot see' in error.message
        assert "PgServer.spec.databases does not include it" in error.message

    def test_what_the_role_itself_may_not_hold_comes_first(self) -> None:
        observed = replace(SEEN, named=ObservedRole(OID, replace(ROLE, superuser=True)))
        assert "(superuser)" in refuse(ASKED, observed).message


class TestRoleExists:
    def test_the_message_lists_what_adoption_would_revoke(self) -> None:
        asked = replace(answer(ASKED, {"orders": WITHIN, "lake": WITHIN}), adopt=False)
        error = refuse(asked)
        assert error.reason is Reason.ROLE_EXISTS
        assert (
            "adoption would revoke DELETE on table app.orders (database lake), DELETE on table app.orders (database "
            "orders) and 4 more. To take" in error.message
        )

    def test_it_says_which_databases_have_not_been_compared_and_why(self) -> None:
        asked = replace(
            answer(ASKED, {"orders": WITHIN, "lake": Transient(Reason.SERVER_NOT_READY, "timed out")}), adopt=False
        )
        assert (
            "would revoke DELETE on table app.orders (database orders) and 2 more, and would revoke undeclared "
            'privileges in "lake" (not compared: timed out). To take'
        ) in refuse(asked).message

    def test_it_names_other_databases_in_which_the_former_objects_declarations_would_be_revoked(self) -> None:
        former = {"orders": (READ,), "lake": (LAKE,), "gone": (LAKE,)}
        claim = replace(RELEASED, owner=replace(ME, object="other", object_uid="uid-9"), privileges=former)
        words = "adoption would revoke what the role's former object declared in {}. To take"
        message = refuse(desired(), replace(SEEN, claim=claim)).message
        assert words.format('"lake", "orders"') in message
        seen = replace(SEEN, claim=claim, unheld=frozenset({"orders"}))
        assert words.format('"lake"') in refuse(desired(READ), seen).message

    def test_what_is_beyond_the_policy_denies_nothing_yet(self) -> None:
        asked = replace(answer(ASKED, {"orders": BEYOND, "lake": WITHIN}), adopt=False)
        assert refuse(asked).reason is Reason.ROLE_EXISTS


class TestAdoptee:
    def test_it_declares_what_the_object_lists_under_its_policy(self) -> None:
        observed = replace(SEEN, references=replace(THERE, templates=frozenset({"lake", "other"})))
        one = adoptee(replace(ASKED, report_only=True, privileges_ignored=True), observed)
        assert (one.key, one.uid, one.oid, one.adoptee) == (KEY, "uid-1", OID, Takeover.NEW)
        assert one.declared == {"orders": READ, "lake": LAKE}
        assert not any((one.former, one.report_only, one.ignored))
        assert one.owned == {20_001}
        assert one.policy == replace(POLICY.privileges, templates=frozenset({"lake"}))

    @pytest.mark.parametrize(
        ("asked", "observed", "policy"),
        [
            (desired(), SEEN, POLICY),
            (ASKED, Observed(), POLICY),
            (replace(ASKED, terminating=True), SEEN, POLICY),
            (replace(ASKED, suspended=True), SEEN, POLICY),
            (ASKED, replace(SEEN, claim=replace(RELEASED, released=False)), POLICY),
            (ASKED, replace(SEEN, claim=replace(RELEASED, released=False, owner=replace(ME, object="b"))), POLICY),
            (ASKED, replace(SEEN, named=ObservedRole(OID, ROLE, owner_elsewhere="shop/b")), POLICY),
            (ASKED, SEEN, replace(POLICY, adopt=False)),
            (ASKED, SEEN, replace(POLICY, admitted=False)),
            (ASKED, SEEN, replace(POLICY, protected=("app",))),
        ],
    )
    def test_no_other_role_is_one(self, asked: Desired, observed: Observed, policy: Policy) -> None:
        assert find_adoptee(asked, observed, SERVER, policy) is None

    def test_its_digest_is_never_that_of_the_role_once_it_is_owned(self) -> None:
        one = adoptee()
        assert one.digest_of("orders") != replace(one, adoptee=None).digest_of("orders")


class TestRetained:
    PLAIN = replace(ASKED, adopt=False)
    KEPT = replace(SEEN, claim=RELEASED)

    def test_it_is_taken_back_once_every_database_has_answered(self) -> None:
        error = refuse(self.PLAIN, self.KEPT)
        assert (type(error), error.reason) == (Transient, Reason.PROGRESSING)
        assert 'taking the role back waits for database "lake"' in error.message
        asked = answer(self.PLAIN, {"orders": WITHIN, "lake": WITHIN}, self.KEPT)
        plan = decide(asked, self.KEPT, SERVER, POLICY)
        assert isinstance(plan, Plan)
        assert plan.owner == ME

    def test_what_others_gave_it_beyond_the_policy_denies_it(self) -> None:
        error = refuse(answer(self.PLAIN, {"orders": BEYOND, "lake": WITHIN}, self.KEPT), self.KEPT)
        assert error.reason is Reason.NOT_ALLOWED
        assert error.message.startswith('taking the role back is denied: role "app" has privileges')

    def test_the_adoptee_knows_what_its_claim_records(self) -> None:
        one = adoptee(desired(WRITE), self.KEPT)
        assert one.adoptee is Takeover.RETAINED
        assert one.former == {"orders": (READ,)}
        assert adoptee(self.PLAIN, self.KEPT, replace(POLICY, adopt=False)).adoptee is Takeover.RETAINED

    def test_another_objects_released_claim_records_nothing_for_this_one(self) -> None:
        other = replace(RELEASED, owner=Owner("cluster-a", "shop", "ns-uid", "other", "uid-9"))
        one = adoptee(ASKED, replace(SEEN, claim=other))
        assert (one.adoptee, one.former) == (Takeover.NEW, {})

    def test_where_claims_record_no_privileges_it_is_taken_back_at_once(self) -> None:
        assert find_adoptee(self.PLAIN, self.KEPT, STATUS_SERVER, POLICY) is None
        assert decide(self.PLAIN, self.KEPT, STATUS_SERVER, POLICY).owner == ME
