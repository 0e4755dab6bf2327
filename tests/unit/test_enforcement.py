"""core/enforcement: while Kubernetes is away what was applied before is kept, and nothing else is done. No I/O."""

from dataclasses import replace
from typing import Any

import pytest

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.reconcile import _decide
from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import Create, SetAttribute, SetParameter, set_password
from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.core.password import Origin, PasswordAsk, Record, SecretsSeen, SecretVersion
from pgrole_controller.core.plan import Deed, Plan
from pgrole_controller.core.policy import Policy, Surroundings
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import UNSEEN, Found, Membership, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Ask, Server, Sight

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
WANTED = Role("app", login=True)
OID = 20_000
ADDRESS = Address("db", 5432, "app", "require")
KNOWN = Generations(3, "server-uid", 5)
HERE = Server(7, frozenset({"keeper"}), "cluster-a", ADDRESS, uid="server-uid", generation=5, notes_generations=True)
AWAY = replace(HERE, away=True)
DRIFTED = Found(OID, replace(WANTED, superuser=True))
OURS = make_verifier("ours", b"0123456789abcdef", 4096)
THEIRS = make_verifier("theirs", b"0123456789abcdef", 4096)
FROM_SECRET = PasswordAsk(Origin.SECRET, secret="source", key="password")
SECRET = SecretVersion("s-uid", "1")
RECORD = Record(source="s-uid/1/password", digest=OURS.digest)


def ask(**values: Any) -> Ask:
    return replace(Ask(owner=ME, wanted=WANTED, generation=3), **values)


def claim(**values: Any) -> Claim:
    return replace(Claim("app", OID, 7, ME, applied=digest(WANTED), generations=KNOWN), **values)


def away(asked: Ask, sight: Sight) -> Plan:
    return decide(asked, sight, AWAY, Policy())


def secured(**values: Any) -> Ask:
    return ask(password=FROM_SECRET, secrets=SecretsSeen(password=SECRET), remembered=OURS, **values)


class TestWhatIsKept:
    def test_a_drift_is_set_back(self) -> None:
        plan = away(ask(), Sight(named=DRIFTED, claim=claim()))
        assert plan.changes == (SetAttribute("app", "superuser", False),)
        assert (plan.deed, plan.drift) == (Deed.CORRECTED, ("superuser",))

    def test_a_role_that_was_dropped_is_created_again_with_the_password_that_it_had(self) -> None:
        sight = Sight(claim=claim(record=RECORD))
        plan = away(secured(), sight)
        assert isinstance(plan.changes[0], Create)
        password = set_password(plan.changes)
        assert password is not None
        assert password.verifier == OURS

    def test_a_role_as_it_should_be_needs_nothing(self) -> None:
        assert not away(ask(), Sight(named=Found(OID, WANTED), claim=claim())).writes

    def test_a_password_is_set_back_from_what_is_remembered_though_its_secret_is_another_by_now(self) -> None:
        sight = Sight(named=Found(OID, replace(WANTED, password=Password(THEIRS.digest))), claim=claim(record=RECORD))
        plan = away(secured(), sight)
        assert set_password(plan.changes) == Password(OURS.digest)
        assert plan.drift == ("password",)
        changed = replace(secured(), secrets=SecretsSeen(password=SecretVersion("s-uid", "2")))
        assert set_password(away(changed, sight).changes) == Password(OURS.digest)
        assert plan.errand is None
        assert plan.record is None

    @pytest.mark.parametrize("remembered", [None, THEIRS])
    def test_a_verifier_that_is_not_the_claims_is_not_set(self, remembered: Any) -> None:
        sight = Sight(named=Found(OID, replace(WANTED, password=Password(THEIRS.digest))), claim=claim(record=RECORD))
        plan = away(replace(secured(), remembered=remembered), sight)
        assert not plan.writes
        assert [type(one) for one in plan.pending] == [Transient]

    def test_where_verifiers_cannot_be_seen_none_is_set(self) -> None:
        sight = Sight(named=Found(OID, replace(WANTED, password=UNSEEN)), claim=claim(record=RECORD))
        assert not away(secured(), sight).writes

    def test_a_password_that_is_disabled_is_kept_so(self) -> None:
        record = Record(source="none")
        sight = Sight(named=Found(OID, replace(WANTED, password=Password(THEIRS.digest))), claim=claim(record=record))
        plan = away(ask(password=PasswordAsk(Origin.NOWHERE)), sight)
        assert plan.changes == (SetAttribute("app", "password", None),)


class TestWhatIsNotDone:
    """Each with a drift, which stays."""

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
            {"wanted": replace(WANTED, createdb=True)},
        ],
        ids=str,
    )
    def test_for_an_object_that_is_not_what_was_last_acted_on(self, values: dict[str, Any]) -> None:
        with pytest.raises(PgRoleError) as caught:
            away(ask(**values), Sight(named=DRIFTED, claim=claim()))
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
    def test_for_a_claim_that_says_something_else(self, values: dict[str, Any]) -> None:
        with pytest.raises(PgRoleError) as caught:
            away(ask(), Sight(named=DRIFTED, claim=claim(**values)))
        assert isinstance(caught.value, Transient)

    def test_without_a_claim(self) -> None:
        for sight in (Sight(), Sight(named=DRIFTED)):
            with pytest.raises(Transient):
                away(ask(adopt=True), sight)

    def test_nothing_is_released_of_an_object_that_seems_to_be_gone(self) -> None:
        request, sight = Target(Key("shop", "gone"), None), Sight(former=(("old", "uid-0"),))
        here, there = _decide(request, sight, HERE), _decide(request, sight, AWAY)
        assert isinstance(here, Plan)
        assert here.writes
        assert isinstance(there, Transient)

    def test_nothing_is_released(self) -> None:
        plan = away(ask(), Sight(named=DRIFTED, claim=claim(), former=(("old", "uid-0"),)))
        assert plan.releases == ()

    def test_a_group_that_came_meanwhile_is_not_joined(self) -> None:
        wanted = replace(WANTED, member_of=(Membership("readers"),))
        sight = Sight(named=DRIFTED, claim=claim(), around=Surroundings(groups={"readers": ()}))
        with pytest.raises(Transient):
            decide(ask(wanted=wanted), sight, AWAY, Policy(member_of=("readers",)))


class TestWhatIsNoted:
    def test_the_generations_are_noted_with_what_is_applied(self) -> None:
        plan = decide(ask(), Sight(), HERE, Policy())
        assert plan.acted_on == KNOWN
        assert plan.owner == ME

    def test_they_are_noted_alone_where_nothing_else_is_to_be_done(self) -> None:
        plan = decide(ask(generation=4), Sight(named=Found(OID, WANTED), claim=claim()), HERE, Policy())
        assert (plan.acted_on, plan.owner, plan.changes) == (replace(KNOWN, object=4), None, ())
        assert plan.writes

    def test_and_not_again(self) -> None:
        assert not decide(ask(), Sight(named=Found(OID, WANTED), claim=claim()), HERE, Policy()).writes

    def test_not_where_the_claims_cannot_hold_them(self) -> None:
        server = replace(HERE, notes_generations=False)
        plan = decide(ask(generation=4), Sight(named=Found(OID, WANTED), claim=claim()), server, Policy())
        assert not plan.writes

    def test_not_for_an_object_that_is_refused(self) -> None:
        wanted = replace(WANTED, parameters=(("log_statement", "all"),))
        sight = Sight(named=DRIFTED, claim=claim(), around=Surroundings(contexts={"log_statement": "superuser"}))
        plan = decide(ask(wanted=wanted, generation=4), sight, HERE, Policy())
        assert plan.pending
        assert plan.acted_on is None
        assert not any(isinstance(change, SetParameter) for change in plan.changes)
