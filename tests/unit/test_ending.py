"""core/ending: what is done about an object that is being deleted. No I/O: what is seen is given."""

from dataclasses import replace

import pytest

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.deletion import LOGIN_TAKEN, decide_end, find_ending, name_way_out
from pgrole_controller.core.diff import Drop, Rename, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.plan import Disown, Emptied, Heir, Plan
from pgrole_controller.core.policy import Policy, Surroundings
from pgrole_controller.core.role import Found, Role, digest
from pgrole_controller.core.state import Ask, Needs, Server, Sight

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
OTHER = Owner("cluster-a", "shop", "ns-uid", "other", "uid-9")
WANTED = Role("app", login=True)
SERVER = Server(
    system_identifier=7,
    own_roles=frozenset({"keeper"}),
    cluster="cluster-a",
    address=Address("db", 5432, "app", "require"),
)
OID = 20_000
OWNS = (Needs("orders", 3),)
PLACE = (ME.cluster, ME.namespace, ME.namespace_uid)
HEIR = Heir(OID + 9, PLACE)
FOUND = Found(OID, WANTED)
WITHOUT_LOGIN = Found(OID, replace(WANTED, login=False))


def ask(**values: object) -> Ask:
    return replace(Ask(owner=ME, wanted=WANTED, terminating=True, drop=True), **values)  # type: ignore[arg-type]


def claim(**values: object) -> Claim:
    plain = Claim("app", OID, SERVER.system_identifier, ME, applied=digest(WANTED))
    return replace(plain, **values)  # type: ignore[arg-type]


def see(**values: object) -> Sight:
    return replace(Sight(named=FOUND, claim=claim()), **values)  # type: ignore[arg-type]


def end(asked: Ask, sight: Sight, policy: Policy | None = None) -> Plan:
    return decide_end(asked, sight, SERVER, policy or Policy())


def blocked(asked: Ask, sight: Sight, policy: Policy | None = None) -> PgRoleError:
    with pytest.raises(Waiting) as caught:
        end(asked, sight, policy)
    assert caught.value.reason is Reason.DROP_BLOCKED
    assert "spec.deletionPolicy: Retain" in caught.value.message
    return caught.value


class TestWithoutAnHeir:
    def test_what_nothing_needs_is_dropped_although_it_may_log_in(self) -> None:
        assert end(ask(), see()).changes == (Drop("app"),)

    def test_what_is_needed_stays_as_it_is(self) -> None:
        error = blocked(ask(), see(needs=(*OWNS, Needs("", 2, members=2)), sessions=1))
        assert '3 in database "orders", 2 shared by the server' in error.message

    def test_open_sessions_are_waited_for_once_nobody_else_can_log_in(self) -> None:
        plan = end(ask(), see(sessions=2))
        assert plan.changes == (SetAttribute("app", "login", False),)
        assert (plan.owner, plan.applied) == (ME, LOGIN_TAKEN)
        error = blocked(ask(), see(named=WITHOUT_LOGIN, sessions=2))
        assert "open sessions: 2" in error.message
        assert "terminateSessions" in error.message

    def test_sessions_that_shall_be_ended_are(self) -> None:
        plan = end(ask(terminate_sessions=True), see(named=WITHOUT_LOGIN, sessions=2))
        assert plan.disown == Disown("app", OID, None, terminate=True)
        assert not plan.writes


class TestTheHeir:
    asked = ask(heir="heir")

    def test_the_login_is_taken_away_before_anything_is_handed_over(self) -> None:
        plan = end(self.asked, see(needs=OWNS, heir=HEIR))
        assert plan.changes == (SetAttribute("app", "login", False),)
        assert plan.disown is None

    def test_what_the_role_owns_is_handed_over(self) -> None:
        plan = end(self.asked, see(named=WITHOUT_LOGIN, needs=OWNS, heir=HEIR))
        assert plan.disown == Disown("app", OID, "heir", terminate=False, new_owner_oid=HEIR.oid)

    def test_what_stood_in_the_way_is_said(self) -> None:
        problem = Waiting(Reason.DROP_BLOCKED, 'in database "orders": it is locked')
        asked = replace(self.asked, emptied=Emptied(problem))
        assert "it is locked" in blocked(asked, see(named=WITHOUT_LOGIN, needs=OWNS, heir=HEIR)).message

    def test_what_is_needed_again_after_it_was_emptied_is_said(self) -> None:
        asked = replace(self.asked, emptied=Emptied())
        assert '3 in database "orders"' in blocked(asked, see(named=WITHOUT_LOGIN, needs=OWNS, heir=HEIR)).message

    def test_a_server_that_failed_meanwhile_is_no_block_but_the_way_out_is_named(self) -> None:
        asked = replace(self.asked, emptied=Emptied(Transient(Reason.SERVER_NOT_READY, "it is gone")))
        with pytest.raises(Transient) as caught:
            end(asked, see(named=WITHOUT_LOGIN, needs=OWNS, heir=HEIR))
        assert caught.value.reason is Reason.SERVER_NOT_READY
        assert "Retain" in caught.value.message

    def test_members_lose_the_role_with_it(self) -> None:
        plan = end(self.asked, see(needs=(Needs("", 2, members=2),), heir=HEIR))
        assert plan.changes == (Drop("app"),)
        assert not end(self.asked, see(needs=(Needs("", 3, members=2),), heir=HEIR)).forget

    def test_a_renamed_role_gets_its_name_back_with_which_its_login_is_remembered(self) -> None:
        sight = see(named=None, claimed=Found(OID, replace(WANTED, name="away")), needs=OWNS, heir=HEIR)
        plan = end(self.asked, sight)
        assert plan.changes == (Rename("away", "app"), SetAttribute("app", "login", False))
        assert (plan.seen_as, plan.oid) == ("away", OID)

    @pytest.mark.parametrize(
        ("name", "heir", "reaches", "words"),
        [
            ("app", HEIR, (), "must not be the role itself"),
            ("heir", None, (), 'role "heir" does not exist'),
            ("heir", replace(HEIR, place=None), (), "no PgRole in namespace shop"),
            ("heir", replace(HEIR, place=("cluster-b", *PLACE[1:])), (), "no PgRole in namespace shop"),
            ("heir", replace(HEIR, place=(*PLACE[:2], "an earlier namespace")), (), "no PgRole in namespace shop"),
            ("heir", replace(HEIR, oid=10), (), "an initial role of PostgreSQL"),
            ("heir", HEIR, ("pg_execute_server_program",), "reaches pg_execute_server_program"),
            ("heir", HEIR, ("heir",), "reaches heir"),
            ("keeper", HEIR, (), "the controller's own role"),
            ("pg_monitor", Heir(3373), (), "a role of PostgreSQL itself"),
            ("rds_admin", HEIR, (), 'protected by the server\'s pattern "rds_*"'),
        ],
    )
    def test_one_that_may_not_be_an_heir_is_refused_before_anything_is_changed(
        self, name: str, heir: Heir | None, reaches: tuple[str, ...], words: str
    ) -> None:
        around = Surroundings(groups={name: reaches})
        error = blocked(
            ask(heir=name), see(needs=OWNS, heir=heir, around=around), Policy(protected=("rds_*",), reassign_to=())
        )
        assert words in error.message

    def test_the_policy_can_name_an_heir_that_is_nobodys(self) -> None:
        sight = see(needs=OWNS, heir=Heir(OID + 9), around=Surroundings(groups={"heir": ("heir",)}))
        blocked(self.asked, sight, Policy(reassign_to=("h*",)))
        assert end(self.asked, sight, Policy(reassign_to=("heir",))).changes


class TestTheWayOut:
    asked = ask(drop=False)
    taken = claim(applied=LOGIN_TAKEN)

    def test_the_login_that_was_taken_away_is_given_back_and_then_the_claim_released(self) -> None:
        plan = end(self.asked, see(named=WITHOUT_LOGIN, claim=self.taken))
        assert plan.changes == (SetAttribute("app", "login", True),)
        assert plan.releases == ()
        assert end(self.asked, see(claim=self.taken)).releases == (("app", "uid-1"),)

    def test_a_renamed_role_gets_it_back_too(self) -> None:
        away = Found(OID, Role("away"))
        assert end(self.asked, see(named=None, claimed=away, claim=self.taken)).changes == (
            SetAttribute("away", "login", True),
        )

    def test_what_others_decide_about_is_given_back_too(self) -> None:
        wanted = replace(WANTED, login=False)
        asked = replace(self.asked, wanted=wanted)
        assert end(asked, see(named=WITHOUT_LOGIN, claim=self.taken)).changes == ()
        for left in ({"ignore": frozenset({"login"})}, {"report_only": True}):
            assert end(replace(asked, **left), see(named=WITHOUT_LOGIN, claim=self.taken)).changes

    @pytest.mark.parametrize(
        "sight",
        [
            see(named=WITHOUT_LOGIN),
            see(named=WITHOUT_LOGIN, claim=replace(taken, released=True)),
            see(named=WITHOUT_LOGIN, claim=replace(taken, system_identifier=8)),
            see(named=replace(WITHOUT_LOGIN, oid=OID + 1), claim=taken),
            see(named=WITHOUT_LOGIN, claim=replace(taken, owner=OTHER)),
            see(named=None, claimed=replace(WITHOUT_LOGIN, held_by="shop/other"), claim=taken),
        ],
        ids=["not taken by us", "released", "of another server", "another role", "another's", "another's by now"],
    )
    def test_no_other_login_is_given(self, sight: Sight) -> None:
        assert end(self.asked, sight).changes == ()

    def test_a_suspended_object_changes_nothing_on_its_way_out(self) -> None:
        plan = end(replace(self.asked, suspended=True), see(named=WITHOUT_LOGIN, claim=self.taken))
        assert plan.changes == ()
        assert plan.releases == (("app", "uid-1"),)

    def test_it_needs_no_policy(self) -> None:
        blocked(ask(), see(), Policy(drop=False))
        assert end(self.asked, see(), Policy(drop=False, protected=("*",))).releases

    @pytest.mark.parametrize("kind", [Waiting, Refused, Transient])
    def test_it_is_named_once(self, kind: type[PgRoleError]) -> None:
        error = name_way_out(kind(Reason.DATABASE_ERROR, "no"))
        assert type(error) is kind
        assert name_way_out(error) is error


class TestWhichRoleIsLookedAt:
    def test_the_one_that_would_be_dropped(self) -> None:
        stranger = Found(OID, Role("stranger"))
        elsewhere = see(named=replace(FOUND, oid=OID + 5), claimed=stranger, claim=claim(system_identifier=99))
        assert find_ending(ask(), elsewhere, SERVER, Policy()) == OID + 5
        assert find_ending(ask(), see(), SERVER, Policy()) == OID
        assert find_ending(ask(), see(named=None, claimed=stranger), SERVER, Policy()) == OID

    @pytest.mark.parametrize(
        ("asked", "sight"),
        [
            (ask(drop=False), see()),
            (ask(terminating=False), see()),
            (ask(), see(claim=None)),
            (ask(), see(claim=claim(owner=OTHER))),
            (ask(), see(named=replace(FOUND, oid=OID + 5), claimed=FOUND)),
            (ask(), see(named=None)),
        ],
    )
    def test_none_where_nothing_is_dropped(self, asked: Ask, sight: Sight) -> None:
        assert find_ending(asked, sight, SERVER, Policy()) is None
