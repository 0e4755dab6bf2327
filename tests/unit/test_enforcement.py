"""core/decision: while Kubernetes is unreachable, the controller maintains only the state last applied. No I/O."""

from dataclasses import replace
from typing import Any

import pytest

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.reconcile import _decide
from pgrole_controller.core.claim import Claim, ClaimKey, Generations, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import Create, SetAttribute, SetParameter, set_password
from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    SecretVersion,
)
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import UNSEEN, Membership, ObservedRole, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.postgres.apply import _without
from pgrole_controller.postgres.missing_privileges import MissingPrivilege

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
DESIRED = Role("app", login=True)
OID = 20_000
ADDRESS = Address("db", 5432, "app", "require")
KNOWN = Generations(3, "server-uid", 5)
HERE = Server(7, frozenset({"keeper"}), ADDRESS, uid="server-uid", generation=5, has_current_schema=True)
AWAY = replace(HERE, enforcing=True)
DRIFTED = ObservedRole(OID, replace(DESIRED, superuser=True))
OURS = make_verifier("ours", b"0123456789abcdef", 4096)
THEIRS = make_verifier("theirs", b"0123456789abcdef", 4096)
FROM_SECRET = DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password")
SECRET = SecretVersion("s-uid", "1")
RECORD = PasswordRecord(source="s-uid/1/password", digest=OURS.digest)
REPLACED = ObservedRole(30_001, replace(DESIRED, password=UNSEEN))


def desired(**values: Any) -> Desired:
    return replace(Desired(owner=ME, role=DESIRED, generation=3), **values)


def claim(**values: Any) -> Claim:
    return replace(Claim("app", OID, 7, ME, applied=digest(DESIRED), generations=KNOWN), **values)


def away(asked: Desired, observed: Observed) -> Plan:
    return decide(asked, observed, AWAY, Policy())


def secured(**values: Any) -> Desired:
    return desired(password=FROM_SECRET, secrets=ObservedSecrets(password=SECRET), remembered=OURS, **values)


class TestEnforcedState:
    def test_drift_is_corrected(self) -> None:
        plan = away(desired(), Observed(named=DRIFTED, claim=claim()))
        assert plan.changes == (SetAttribute("app", "superuser", False),)
        assert (plan.action, plan.drift) == (Action.CORRECTED, ("superuser",))

    def test_a_dropped_role_is_created_again_with_its_password(self) -> None:
        observed = Observed(claim=claim(record=RECORD))
        plan = away(secured(), observed)
        assert isinstance(plan.changes[0], Create)
        password = set_password(plan.changes)
        assert password is not None
        assert password.verifier == OURS

    def test_a_role_that_matches_needs_no_change(self) -> None:
        assert not away(desired(), Observed(named=ObservedRole(OID, DESIRED), claim=claim())).writes

    def test_a_password_is_restored_from_the_remembered_verifier_even_if_the_secret_changed(self) -> None:
        observed = Observed(
            named=ObservedRole(OID, replace(DESIRED, password=Password(THEIRS.digest))), claim=claim(record=RECORD)
        )
        plan = away(secured(), observed)
        assert set_password(plan.changes) == Password(OURS.digest)
        assert plan.drift == ("password",)
        changed = replace(secured(), secrets=ObservedSecrets(password=SecretVersion("s-uid", "2")))
        assert set_password(away(changed, observed).changes) == Password(OURS.digest)
        assert plan.password_task is None
        assert plan.record is None

    @pytest.mark.parametrize("remembered", [None, THEIRS])
    def test_a_password_is_not_restored_without_a_verifier_that_matches_the_claim(self, remembered: Any) -> None:
        observed = Observed(
            named=ObservedRole(OID, replace(DESIRED, password=Password(THEIRS.digest))), claim=claim(record=RECORD)
        )
        plan = away(replace(secured(), remembered=remembered), observed)
        assert not plan.writes
        assert [type(one) for one in plan.pending] == [Transient]

    def test_no_password_is_set_where_verifiers_cannot_be_read(self) -> None:
        observed = Observed(named=ObservedRole(OID, replace(DESIRED, password=UNSEEN)), claim=claim(record=RECORD))
        assert not away(secured(), observed).writes

    @pytest.mark.parametrize("remembered", [None, THEIRS])
    @pytest.mark.parametrize("found", [None, REPLACED], ids=["dropped", "created by someone else"])
    def test_a_new_role_gets_its_password_once_kubernetes_is_back(self, found: Any, remembered: Any) -> None:
        asked = replace(secured(), remembered=remembered)
        plan = away(asked, Observed(named=found, claim=claim(record=RECORD)))
        assert plan.owner == ME
        assert plan.record == PasswordRecord()
        assert set_password(plan.changes) is None
        assert [type(one) for one in plan.pending] == [Transient]
        later = Observed(named=REPLACED, claim=claim(role_oid=REPLACED.oid, record=plan.record))
        still = away(asked, later)
        assert not still.writes
        assert [type(one) for one in still.pending] == [Transient]
        assert decide(asked, later, HERE, Policy()).password_task is not None

    def test_a_role_that_someone_else_created_gets_the_remembered_password(self) -> None:
        plan = away(secured(), Observed(named=REPLACED, claim=claim(record=RECORD)))
        assert set_password(plan.changes) == Password(OURS.digest)
        assert plan.record is None
        later = Observed(named=REPLACED, claim=claim(role_oid=REPLACED.oid, record=RECORD))
        assert not away(secured(), later).writes
        assert decide(secured(), later, HERE, Policy()).password_task is None

    def test_an_ignored_password_of_a_dropped_role_is_set_once_kubernetes_is_back(self) -> None:
        asked = replace(secured(ignore=frozenset({"password"})), remembered=None)
        plan = away(asked, Observed(claim=claim(record=RECORD)))
        assert plan.record is not None
        for password in (None, UNSEEN):
            created = ObservedRole(REPLACED.oid, replace(DESIRED, password=password))
            later = Observed(named=created, claim=claim(role_oid=REPLACED.oid, record=plan.record))
            assert not away(asked, later).writes
            assert decide(asked, later, HERE, Policy()).password_task is not None

    def test_a_role_that_someone_else_created_loses_a_password_that_is_disabled(self) -> None:
        observed = Observed(named=REPLACED, claim=claim(record=PasswordRecord(source="none")))
        plan = away(desired(password=DesiredPassword(PasswordOrigin.NOWHERE)), observed)
        assert plan.changes == (SetAttribute("app", "password", None),)
        assert plan.record is None

    def test_a_disabled_password_stays_disabled(self) -> None:
        record = PasswordRecord(source="none")
        observed = Observed(
            named=ObservedRole(OID, replace(DESIRED, password=Password(THEIRS.digest))), claim=claim(record=record)
        )
        plan = away(desired(password=DesiredPassword(PasswordOrigin.NOWHERE)), observed)
        assert plan.changes == (SetAttribute("app", "password", None),)


class TestWithheldActions:
    """In each case the role has drifted and stays as it is."""

    @pytest.mark.parametrize(
        "values",
        [
            {"generation": 4},
            {"terminating": True, "drop": True},
            {"terminating": True},
            {"suspended": True},
            {"report_only": True},
            {"owner": replace(ME, object_uid="uid-2")},
            {"owner": replace(ME, namespace_uid="another")},
            {"role": replace(DESIRED, createdb=True)},
        ],
        ids=str,
    )
    def test_drift_is_not_corrected_for_an_object_that_differs_from_the_one_last_acted_on(
        self, values: dict[str, Any]
    ) -> None:
        with pytest.raises(PgRoleError) as caught:
            away(desired(**values), Observed(named=DRIFTED, claim=claim()))
        assert isinstance(caught.value, Transient)

    @pytest.mark.parametrize(
        "values",
        [
            {"generations": Generations()},
            {"generations": replace(KNOWN, object=2)},
            {"generations": replace(KNOWN, server=4)},
            {"generations": replace(KNOWN, server_uid="another")},
            {"applied": "sha256:another"},
            {"released": True},
            {"system_identifier": 8},
        ],
        ids=str,
    )
    def test_drift_is_not_corrected_with_a_claim_that_records_another_state(self, values: dict[str, Any]) -> None:
        with pytest.raises(PgRoleError) as caught:
            away(desired(), Observed(named=DRIFTED, claim=claim(**values)))
        assert isinstance(caught.value, Transient)

    def test_without_a_claim_a_role_is_neither_created_nor_adopted(self) -> None:
        for observed in (Observed(), Observed(named=DRIFTED)):
            with pytest.raises(Transient):
                away(desired(adopt=True), observed)

    def test_claims_of_an_object_that_appears_deleted_are_not_released(self) -> None:
        request, observed = Target(Key("shop", "gone"), None), Observed(other_claims=(ClaimKey("old", "uid-0"),))
        here, there = _decide(request, observed, HERE), _decide(request, observed, AWAY)
        assert isinstance(here, Plan)
        assert here.writes
        assert isinstance(there, Transient)

    def test_claims_of_former_names_are_not_released(self) -> None:
        plan = away(desired(), Observed(named=DRIFTED, claim=claim(), other_claims=(ClaimKey("old", "uid-0"),)))
        assert plan.releases == ()

    def test_a_group_that_appeared_meanwhile_is_not_joined(self) -> None:
        desired_role = replace(DESIRED, member_of=(Membership("readers"),))
        observed = Observed(named=DRIFTED, claim=claim(), references=References(groups={"readers": ()}))
        with pytest.raises(Transient):
            decide(desired(role=desired_role), observed, AWAY, Policy(member_of=("readers",)))


class TestNotedGenerations:
    def test_generations_are_recorded_with_the_applied_state(self) -> None:
        plan = decide(desired(), Observed(), HERE, Policy())
        assert plan.acted_on == KNOWN
        assert plan.owner == ME

    def test_generations_are_recorded_alone_if_nothing_else_has_to_be_done(self) -> None:
        plan = decide(desired(generation=4), Observed(named=ObservedRole(OID, DESIRED), claim=claim()), HERE, Policy())
        assert (plan.acted_on, plan.owner, plan.changes) == (replace(KNOWN, object=4), None, ())
        assert plan.writes

    def test_unchanged_generations_are_not_recorded_again(self) -> None:
        assert not decide(desired(), Observed(named=ObservedRole(OID, DESIRED), claim=claim()), HERE, Policy()).writes

    def test_generations_are_not_recorded_where_claims_cannot_hold_them(self) -> None:
        server = replace(HERE, has_current_schema=False)
        plan = decide(
            desired(generation=4), Observed(named=ObservedRole(OID, DESIRED), claim=claim()), server, Policy()
        )
        assert not plan.writes

    def test_generations_of_a_refused_object_are_not_recorded(self) -> None:
        desired_role = replace(DESIRED, parameters=(("log_statement", "all"),))
        observed = Observed(
            named=DRIFTED, claim=claim(), references=References(contexts={"log_statement": "superuser"})
        )
        plan = decide(desired(role=desired_role, generation=4), observed, HERE, Policy())
        assert plan.pending
        assert plan.acted_on is None
        assert not any(isinstance(change, SetParameter) for change in plan.changes)

    def test_generations_of_a_spec_of_which_only_a_part_is_permitted_are_not_recorded(self) -> None:
        asked = desired(role=replace(DESIRED, createdb=True, connection_limit=3), generation=4)
        plan = decide(asked, Observed(named=ObservedRole(OID, DESIRED), claim=claim()), HERE, Policy())
        assert plan.acted_on is not None
        rest = _without(plan, [MissingPrivilege(plan.changes[0], "")])
        assert rest is not None
        assert (rest.changes, rest.owner, rest.acted_on) == (plan.changes[1:], None, None)
