"""core/deletion: decisions about objects that are being deleted. No I/O: tests give the observed state."""

from dataclasses import replace
from typing import ClassVar

import asyncpg
import pytest

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import ObjectReconcile
from pgrole_controller.core.claim import Claim, ClaimKey, Owner, Proof
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.deletion import (
    LOGIN_TAKEN,
    add_way_out,
    block_drop,
    decide_deletion,
    find_role_to_drop,
    may_revoke,
)
from pgrole_controller.core.diff import Drop, Rename, SetAttribute
from pgrole_controller.core.errors import (
    DropInterrupted,
    PgRoleError,
    Reason,
    Refused,
    Transient,
    Waiting,
    internal_error,
)
from pgrole_controller.core.outcome import LONGEST_MESSAGE
from pgrole_controller.core.plan import NewOwner, Plan, ReassignOwned, ReassignResult
from pgrole_controller.core.policy import Policy, References, ServerPolicy
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, PrivilegePolicy
from pgrole_controller.core.privileges.kept_privileges import grantee_of, write_kept
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole, Role, digest
from pgrole_controller.core.state import Dependents, Desired, Observed, Server
from pgrole_controller.postgres.apply import PartlyApplied
from pgrole_controller.postgres.fence import Unconfirmed
from pgrole_controller.postgres.rows import Deferred, Unreadable

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
OTHER = Owner("cluster-a", "shop", "ns-uid", "other", "uid-9")
DESIRED = Role("app", login=True)
SERVER = Server(
    system_identifier=7,
    own_roles=frozenset({"keeper"}),
    address=Address("db", 5432, "app", "require"),
)
OID = 20_000
OWNS = (Dependents("orders", 3),)
PLACE = (ME.cluster, ME.namespace, ME.namespace_uid)
NEW_OWNER = NewOwner(OID + 9, PLACE)
FOUND = ObservedRole(OID, DESIRED)
WITHOUT_LOGIN = ObservedRole(OID, replace(DESIRED, login=False))


def desired(**values: object) -> Desired:
    return replace(Desired(owner=ME, role=DESIRED, terminating=True, drop=True), **values)  # type: ignore[arg-type]


def claim(**values: object) -> Claim:
    plain = Claim("app", OID, SERVER.system_identifier, ME, applied=digest(DESIRED))
    return replace(plain, **values)  # type: ignore[arg-type]


def see(**values: object) -> Observed:
    return replace(Observed(named=FOUND, claim=claim()), **values)  # type: ignore[arg-type]


def end(asked: Desired, observed: Observed, policy: Policy | None = None) -> Plan:
    return decide_deletion(asked, observed, SERVER, policy or Policy())


def blocked(asked: Desired, observed: Observed, policy: Policy | None = None) -> PgRoleError:
    with pytest.raises(Waiting) as caught:
        end(asked, observed, policy)
    assert caught.value.reason is Reason.DROP_BLOCKED
    assert "spec.deletionPolicy: Retain" in caught.value.message
    return caught.value


def _locked() -> PgRoleError:
    error = Transient(Reason.DATABASE_ERROR, "a lock was not available in time")
    error.__cause__ = asyncpg.LockNotAvailableError()
    return error


class TestDecidingDropWithoutNewOwner:
    def test_a_role_without_dependents_is_dropped_even_if_it_can_log_in(self) -> None:
        assert end(desired(), see()).changes == (Drop("app"),)

    def test_a_role_with_dependents_is_not_changed(self) -> None:
        error = blocked(desired(), see(dependents=(*OWNS, Dependents("", 2, members=2)), sessions=1))
        assert '3 in database "orders", 2 shared by the server' in error.message

    def test_databases_that_are_not_named_are_counted(self) -> None:
        error = blocked(desired(), see(dependents=(*OWNS, Dependents("", 45, others=30))))
        assert '3 in database "orders", 45 in 30 more databases. To' in error.message
        error = blocked(desired(), see(dependents=(*OWNS, Dependents("", 1, others=1))))
        assert '3 in database "orders", 1 in 1 more database. To' in error.message

    def test_the_drop_removes_the_login_and_then_waits_for_open_sessions(self) -> None:
        plan = end(desired(), see(sessions=2))
        assert plan.changes == (SetAttribute("app", "login", False),)
        assert (plan.owner, plan.applied) == (ME, LOGIN_TAKEN)
        error = blocked(desired(), see(named=WITHOUT_LOGIN, sessions=2))
        assert "open sessions: 2" in error.message
        assert "terminateSessions" in error.message

    def test_open_sessions_are_terminated_if_the_spec_says_so(self) -> None:
        plan = end(desired(terminate_sessions=True), see(named=WITHOUT_LOGIN, sessions=2))
        assert plan.reassign == ReassignOwned("app", OID, None, terminate=True)
        assert not plan.writes

    def test_a_retained_role_that_was_not_taken_back_is_left_alone(self) -> None:
        for asked in (desired(), desired(new_owner="heir", terminate_sessions=True), desired(suspended=True)):
            retained = see(claim=claim(released=True), dependents=OWNS, new_owner=NEW_OWNER, sessions=1)
            plan = end(asked, retained)
            assert (plan.writes, plan.reassign, plan.forget) == (False, None, False)


class TestDecidingNewOwner:
    asked = desired(new_owner="heir")
    task = ReassignOwned("app", OID, "heir", terminate=False, new_owner_oid=NEW_OWNER.oid)

    def test_the_login_is_removed_before_owned_objects_are_reassigned(self) -> None:
        plan = end(self.asked, see(dependents=OWNS, new_owner=NEW_OWNER))
        assert plan.changes == (SetAttribute("app", "login", False),)
        assert plan.reassign is None

    def test_owned_objects_are_reassigned_to_the_new_owner(self) -> None:
        plan = end(self.asked, see(named=WITHOUT_LOGIN, dependents=OWNS, new_owner=NEW_OWNER))
        assert plan.reassign == self.task

    def test_the_problem_that_stopped_the_reassignment_is_reported(self) -> None:
        problem = Waiting(Reason.DROP_BLOCKED, 'in database "orders": it is locked')
        asked = replace(self.asked, reassign_result=ReassignResult(self.task, problem))
        assert "it is locked" in blocked(asked, see(named=WITHOUT_LOGIN, dependents=OWNS, new_owner=NEW_OWNER)).message

    @pytest.mark.parametrize(
        "other",
        [
            {"role": "away"},
            {"oid": OID + 1},
            {"new_owner": "another"},
            {"new_owner_oid": NEW_OWNER.oid + 1},
            {"terminate": True},
        ],
    )
    def test_a_problem_with_a_role_or_a_spec_that_changed_since_is_not_reported(self, other: dict[str, object]) -> None:
        task = replace(self.task, **other)  # type: ignore[arg-type]
        problem = Transient(Reason.PROGRESSING, "it changed since the controller read it")
        asked = replace(self.asked, reassign_result=ReassignResult(task, problem))
        plan = end(asked, see(named=WITHOUT_LOGIN, dependents=OWNS, new_owner=NEW_OWNER))
        assert plan.reassign == self.task

    def test_dependents_that_remain_after_the_role_was_emptied_are_reported(self) -> None:
        asked = replace(self.asked, reassign_result=ReassignResult(self.task))
        assert (
            '3 in database "orders"'
            in blocked(asked, see(named=WITHOUT_LOGIN, dependents=OWNS, new_owner=NEW_OWNER)).message
        )

    def test_a_server_failure_during_the_reassignment_is_transient_and_names_the_way_out(self) -> None:
        problem = Transient(Reason.SERVER_NOT_READY, "it is gone")
        asked = replace(self.asked, reassign_result=ReassignResult(self.task, problem))
        with pytest.raises(Transient) as caught:
            end(asked, see(named=WITHOUT_LOGIN, dependents=OWNS, new_owner=NEW_OWNER))
        assert caught.value.reason is Reason.SERVER_NOT_READY
        assert "Retain" in caught.value.message

    def test_members_of_the_role_do_not_block_the_drop(self) -> None:
        plan = end(self.asked, see(dependents=(Dependents("", 2, members=2),), new_owner=NEW_OWNER))
        assert plan.changes == (Drop("app"),)
        assert not end(self.asked, see(dependents=(Dependents("", 3, members=2),), new_owner=NEW_OWNER)).forget

    def test_a_renamed_role_is_renamed_back_when_its_login_is_removed(self) -> None:
        observed = see(
            named=None, claimed=ObservedRole(OID, replace(DESIRED, name="away")), dependents=OWNS, new_owner=NEW_OWNER
        )
        plan = end(self.asked, observed)
        assert plan.changes == (Rename("away", "app"), SetAttribute("app", "login", False))
        assert (plan.seen_as, plan.oid) == ("away", OID)

    @pytest.mark.parametrize(
        ("name", "new_owner", "reaches", "words"),
        [
            ("app", NEW_OWNER, (), "must not be the role itself"),
            ("heir", None, (), 'role "heir" does not exist: create it, or name another role'),
            ("heir", replace(NEW_OWNER, place=None), (), "no PgRole in namespace shop"),
            ("heir", replace(NEW_OWNER, place=("cluster-b", *PLACE[1:])), (), "no PgRole in namespace shop"),
            ("heir", replace(NEW_OWNER, place=(*PLACE[:2], "an earlier namespace")), (), "no PgRole in namespace shop"),
            ("heir", replace(NEW_OWNER, oid=10), (), "an initial role of PostgreSQL"),
            ("heir", NEW_OWNER, ("pg_execute_server_program",), "reaches pg_execute_server_program"),
            ("heir", NEW_OWNER, ("heir",), "reaches heir"),
            ("keeper", NEW_OWNER, (), "the controller's own role: name another role"),
            ("pg_monitor", NewOwner(3373), (), "a role of PostgreSQL itself"),
            ("rds_admin", NEW_OWNER, (), 'protected by the server\'s pattern "rds_*"'),
        ],
    )
    def test_an_invalid_new_owner_is_refused_before_anything_changes(
        self, name: str, new_owner: NewOwner | None, reaches: tuple[str, ...], words: str
    ) -> None:
        references = References(groups={name: reaches})
        error = blocked(
            desired(new_owner=name),
            see(dependents=OWNS, new_owner=new_owner, references=references),
            Policy(protected=("rds_*",), reassign_to=()),
        )
        assert words in error.message

    def test_a_new_owner_that_reaches_many_roles_is_refused_with_what_to_do(self) -> None:
        references = References(groups={"heir": tuple(f"group{number}_" + "x" * 50 for number in range(200))})
        error = blocked(self.asked, see(dependents=OWNS, new_owner=NEW_OWNER, references=references))
        assert "and 188 more: name a role without such privileges" in error.message
        assert len(error.message) <= LONGEST_MESSAGE

    def test_a_new_owner_that_the_namespace_names_does_not_lift_the_hard_rules(self) -> None:
        observed = see(dependents=OWNS, new_owner=NEW_OWNER, references=References(groups={"heir": ("heir",)}))
        made, listed = ServerPolicy(Policy(reassign_to=("{namespace}",)), ("*",)), Policy(reassign_to=("heir",))
        assert "reaches heir" in blocked(self.asked, observed, made.policy("heir", {})).message
        assert end(self.asked, observed, listed).changes == (SetAttribute("app", "login", False),)

    def test_the_policy_can_allow_a_new_owner_without_a_pgrole(self) -> None:
        observed = see(dependents=OWNS, new_owner=NewOwner(OID + 9), references=References(groups={"heir": ("heir",)}))
        blocked(self.asked, observed, Policy(reassign_to=("h*",)))
        assert end(self.asked, observed, Policy(reassign_to=("heir",))).changes


class TestDecidingRetain:
    asked = desired(drop=False)
    taken = claim(applied=LOGIN_TAKEN)

    def test_a_removed_login_is_restored_before_the_claim_is_released(self) -> None:
        plan = end(self.asked, see(named=WITHOUT_LOGIN, claim=self.taken))
        assert plan.changes == (SetAttribute("app", "login", True),)
        assert plan.releases == ()
        assert end(self.asked, see(claim=self.taken)).releases == (("app", "uid-1"),)

    def test_the_removed_login_of_a_renamed_role_is_restored(self) -> None:
        away = ObservedRole(OID, Role("away"))
        assert end(self.asked, see(named=None, claimed=away, claim=self.taken)).changes == (
            SetAttribute("away", "login", True),
        )

    def test_a_removed_login_is_restored_even_if_login_is_ignored_or_only_reported(self) -> None:
        desired_role = replace(DESIRED, login=False)
        asked = replace(self.asked, role=desired_role)
        assert end(asked, see(named=WITHOUT_LOGIN, claim=self.taken)).changes == ()
        for left in ({"ignore": frozenset({"login"})}, {"report_only": True}):
            assert end(replace(asked, **left), see(named=WITHOUT_LOGIN, claim=self.taken)).changes

    @pytest.mark.parametrize(
        "observed",
        [
            see(named=WITHOUT_LOGIN),
            see(named=WITHOUT_LOGIN, claim=replace(taken, released=True)),
            see(named=WITHOUT_LOGIN, claim=replace(taken, system_identifier=8)),
            see(named=replace(WITHOUT_LOGIN, oid=OID + 1), claim=taken),
            see(named=WITHOUT_LOGIN, claim=replace(taken, owner=OTHER)),
            see(named=None, claimed=replace(WITHOUT_LOGIN, owner_elsewhere="shop/other"), claim=taken),
        ],
        ids=["not taken by us", "released", "of another server", "another role", "another's", "another's by now"],
    )
    def test_no_other_role_is_given_login(self, observed: Observed) -> None:
        assert end(self.asked, observed).changes == ()

    def test_a_removed_login_that_only_status_records_is_restored(self) -> None:
        asked = replace(self.asked, proof=Proof("app", OID, SERVER.system_identifier, LOGIN_TAKEN))
        plan = end(asked, see(named=WITHOUT_LOGIN, claim=None))
        assert (plan.changes, plan.oid, plan.claim) == ((SetAttribute("app", "login", True),), OID, None)
        assert not end(asked, see(claim=None)).writes
        for found, policy in (
            (replace(WITHOUT_LOGIN, oid=OID + 1), Policy()),
            (ObservedRole(OID, Role("app", superuser=True)), Policy()),
            (WITHOUT_LOGIN, Policy(protected=("a*",))),
            (WITHOUT_LOGIN, Policy(role_names=("other",))),
        ):
            assert not end(asked, see(named=found, claim=None), policy).writes

    def test_the_status_of_an_object_that_waits_says_that_its_login_was_removed(self) -> None:
        """Where claims are in status, it is all that a restarted controller knows."""
        for held, said in ((self.taken, self.taken), (replace(self.taken, owner=OTHER), None), (None, None)):
            attempt = ObjectReconcile(Target(Key("shop", "app"), None, desired()), Contests())
            attempt.observe(see(claim=held), Waiting(Reason.DROP_BLOCKED, "no"), SERVER)
            assert attempt.conclude().claim == said

    def test_a_suspended_object_is_released_without_changes(self) -> None:
        plan = end(replace(self.asked, suspended=True), see(named=WITHOUT_LOGIN, claim=self.taken))
        assert plan.changes == ()
        assert plan.releases == (("app", "uid-1"),)

    def test_a_release_needs_no_permission_from_the_policy(self) -> None:
        assert "for allow.drop" in blocked(desired(), see(), Policy(drop=False)).message
        assert end(self.asked, see(), Policy(drop=False, protected=("*",))).releases

    @pytest.mark.parametrize(
        ("error", "let_go"),
        [
            (Refused(Reason.SUSPENDED, "suspended"), True),
            (Transient(Reason.DATABASE_ERROR, "the controller's role lacks a privilege"), True),
            (internal_error(ValueError()), True),
            (Transient(Reason.PROGRESSING, "the role changed"), False),
            (Transient(Reason.SERVER_NOT_READY, "the connection ended"), False),
            (_locked(), False),
            (Deferred(), False),
        ],
    )
    def test_only_an_error_that_soon_passes_delays_a_release(
        self, error: PgRoleError, let_go: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        for asked in (self.asked, desired()):
            caplog.clear()
            attempt = ObjectReconcile(Target(Key("shop", "app"), None, asked), Contests())
            plan = Plan("app", releases=(ClaimKey("app", "uid-1"),))
            attempt.observe(see(), plan, SERVER)
            attempt.end(plan, error)
            assert attempt.conclude().done_with is (let_go and not asked.drop)
            told = [(one.message, vars(one)["object"], vars(one)["error"]) for one in caplog.records]
            expected = ("object released before its claim", "shop/app", error.message)
            assert told == ([expected] if let_go and not asked.drop else [])

    def test_claims_of_earlier_objects_are_released_though_the_present_one_is_refused(self) -> None:
        asked = desired()
        attempt = ObjectReconcile(Target(Key("shop", "app"), None, asked), Contests())
        others = (ClaimKey("former", "uid-of-an-earlier-object"), ClaimKey("app", asked.owner.object_uid))
        attempt.observe(replace(see(), other_claims=others), Refused(Reason.NOT_ALLOWED, "no"), SERVER)
        assert attempt.left_behind.releases == (("former", "uid-of-an-earlier-object"),)

    @pytest.mark.parametrize(
        "error",
        [
            *(kind(Reason.DATABASE_ERROR, "no") for kind in (Waiting, Refused, Transient)),
            Deferred(),
            Unreadable("text", Reason.DATABASE_ERROR),
            Unconfirmed(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_the_way_out_is_added_to_any_error_only_once(self, error: PgRoleError) -> None:
        added = add_way_out(error)
        assert (type(added), added.reason) == (type(error), error.reason)
        assert added.message.startswith(f"{error.message}. To keep the role")
        assert add_way_out(added) is added

    def test_a_privilege_that_is_missing_to_empty_the_role_blocks_the_drop(self) -> None:
        found = block_drop(Refused(Reason.DATABASE_ERROR, "no"))
        assert isinstance(found, Waiting)
        assert (found.reason, "Retain" in found.message) == (Reason.DROP_BLOCKED, True)
        other = block_drop(Transient(Reason.DATABASE_ERROR, "no"))
        assert (type(other), other.reason) == (Transient, Reason.DATABASE_ERROR)

    def test_the_way_out_leaves_what_was_applied_beside_a_missing_privilege(self) -> None:
        applied = Plan(role_name="app")
        error = add_way_out(PartlyApplied(Reason.DATABASE_ERROR, "no", applied))
        assert isinstance(error, PartlyApplied)
        assert error.applied is applied


class TestRoleToDrop:
    def test_the_role_that_would_be_dropped_is_found(self) -> None:
        stranger = ObservedRole(OID, Role("stranger"))
        elsewhere = see(named=replace(FOUND, oid=OID + 5), claimed=stranger, claim=claim(system_identifier=99))
        assert find_role_to_drop(desired(), elsewhere, SERVER, Policy()) == OID + 5
        assert find_role_to_drop(desired(), see(), SERVER, Policy()) == OID
        assert find_role_to_drop(desired(), see(named=None, claimed=stranger), SERVER, Policy()) == OID

    @pytest.mark.parametrize(
        ("asked", "observed"),
        [
            (desired(drop=False), see()),
            (desired(terminating=False), see()),
            (desired(), see(claim=None)),
            (desired(), see(claim=claim(owner=OTHER))),
            (desired(), see(claim=claim(released=True))),
            (desired(), see(named=replace(FOUND, oid=OID + 5), claimed=FOUND)),
            (desired(), see(named=None)),
        ],
    )
    def test_no_role_is_found_where_nothing_would_be_dropped(self, asked: Desired, observed: Observed) -> None:
        assert find_role_to_drop(asked, observed, SERVER, Policy()) is None


class TestPrivileges:
    kept: ClassVar = {"orders": (DatabasePrivileges("orders", on_database=frozenset({"CONNECT"})),)}
    server = replace(SERVER, has_current_schema=True)
    policy = Policy(privileges=PrivilegePolicy(databases=("*",)))

    def end(self, asked: Desired, observed: Observed, server: Server | None = None, **policy: object) -> Plan:
        allowed = replace(self.policy, **policy)  # type: ignore[arg-type]
        return decide_deletion(asked, observed, server or self.server, allowed)

    def see(self, *existing: str, **values: object) -> Observed:
        references = References(databases=frozenset(existing))
        return see(claim=claim(privileges=self.kept), references=references, dependents=OWNS, **values)

    def confirm(self, asked: Desired, **values: object) -> Desired:
        grantee = grantee_of(asked, self.kept, OID)
        result = PrivilegeResult(grantee.key, grantee.uid, "orders", grantee.digest_of("orders"), confirmed=True)
        return replace(asked, privilege_results={"orders": replace(result, **values)})  # type: ignore[arg-type]

    def test_privileges_are_revoked_before_anything_else_is_considered(self) -> None:
        with pytest.raises(Waiting) as caught:
            self.end(desired(), self.see("orders"))
        assert caught.value.reason is Reason.PROGRESSING
        assert 'revokes privileges of role "app" in database "orders" before it drops the role' in caught.value.message

    def test_privileges_that_cannot_be_revoked_block_the_drop_and_the_way_out_is_named(self) -> None:
        error = Transient(Reason.SERVER_NOT_READY, "the connection was refused")
        asked = self.confirm(desired(), confirmed=False, error=error)
        with pytest.raises(Waiting) as caught:
            self.end(asked, self.see("orders"))
        assert caught.value.reason is Reason.DROP_BLOCKED
        assert (
            "the connection was refused. Let the controller connect there, or revoke them by hand. To keep the role"
            in (caught.value.message)
        )

    def test_a_database_that_can_only_be_dropped_is_not_to_be_connected_to(self) -> None:
        asked = self.confirm(desired(), confirmed=False, error=DropInterrupted("orders"))
        with pytest.raises(Waiting) as caught:
            self.end(asked, self.see("orders"))
        assert caught.value.reason is Reason.DROP_BLOCKED
        assert "was interrupted: run DROP DATABASE again. To keep the role" in caught.value.message

    def test_what_the_declaration_waited_for_before_does_not_block_the_drop(self) -> None:
        error = Waiting(Reason.PRIVILEGE_PENDING, "waiting for table app.orders")
        asked = self.confirm(desired(), confirmed=False, error=error, digest="sha256:declared")
        with pytest.raises(Waiting) as caught:
            self.end(asked, self.see("orders"))
        assert caught.value.reason is Reason.PROGRESSING

    def test_a_database_where_the_role_has_nothing_does_not_block_the_drop(self) -> None:
        error = Transient(Reason.SERVER_NOT_READY, "the connection was refused")
        asked = self.confirm(desired(), confirmed=False, error=error)
        assert self.end(asked, self.see("orders", unheld=frozenset({"orders"}))).privileges == ""

    def test_a_database_that_the_controller_may_not_connect_to_blocks_the_drop(self) -> None:
        error = check_database(PrivilegePolicy(), "orders", declared=False)
        asked = self.confirm(desired(), confirmed=False, error=error)
        with pytest.raises(Waiting) as caught:
            self.end(asked, self.see("orders"), privileges=PrivilegePolicy())
        assert caught.value.reason is Reason.DROP_BLOCKED
        assert "Remove it from spec.privileges" not in caught.value.message
        assert "spec.databases" in caught.value.message

    def test_after_confirmation_the_claim_forgets_the_privileges_and_the_drop_continues(self) -> None:
        cleared = self.end(self.confirm(desired()), self.see("orders"))
        assert (cleared.privileges, cleared.changes, cleared.forget) == ("", (), False)
        assert self.end(desired(), see(references=References())).changes == (Drop("app"),)

    def test_a_dropped_database_counts_as_confirmed(self) -> None:
        assert self.end(desired(), self.see()).privileges == ""

    def test_a_dropped_role_has_no_privileges_to_revoke(self) -> None:
        assert self.end(desired(), replace(self.see("orders", named=None), dependents=())).forget

    def test_a_claim_that_only_status_proves_is_taken_before_privileges_are_revoked(self) -> None:
        """The workers of the databases know only roles with a claim."""
        proof = Proof("app", OID, SERVER.system_identifier, "sha256:applied")
        asked = desired(proof=proof, privileges={"orders": self.kept["orders"][0]})
        server = replace(self.server, claims="Status", has_current_schema=False)
        plan = self.end(asked, replace(self.see("orders"), claim=None), server)
        assert (plan.owner, plan.applied, plan.oid, plan.changes) == (ME, "sha256:applied", OID, ())
        assert plan.claim is not None
        with pytest.raises(Waiting) as caught:
            self.end(asked, self.see("orders"), server)
        assert caught.value.reason is Reason.PROGRESSING

    def test_with_a_lost_claim_the_one_that_is_taken_holds_what_the_spec_declares(self) -> None:
        asked = desired(
            proof=Proof("app", OID, SERVER.system_identifier, "sha256:applied"),
            privileges={"orders": self.kept["orders"][0]},
        )
        plan = self.end(asked, replace(self.see("orders"), claim=None))
        assert (plan.owner, plan.claim, plan.privileges, plan.changes) == (ME, None, write_kept(self.kept), ())

    def test_retain_revokes_nothing(self) -> None:
        plan = self.end(desired(drop=False), self.see("orders"))
        assert plan.releases == (("app", ME.object_uid),)
        assert plan.privileges is None

    @pytest.mark.parametrize(("values", "policy"), [({"suspended": True}, {}), ({}, {"drop": False})])
    def test_a_role_that_may_not_be_dropped_keeps_its_privileges(
        self, values: dict[str, object], policy: dict[str, object]
    ) -> None:
        with pytest.raises(Waiting):
            self.end(desired(**values), self.see("orders"), self.server, **policy)
        assert not may_revoke(
            desired(**values),
            self.see("orders"),
            self.server,
            replace(self.policy, **policy),  # type: ignore[arg-type]
        )

    def test_with_claims_in_status_the_privileges_declared_in_the_spec_are_revoked(self) -> None:
        asked, server = (
            desired(privileges={"orders": self.kept["orders"][0]}),
            replace(self.server, claims="Status", has_current_schema=False),
        )
        observed = see(references=References(databases=frozenset({"orders"})))
        with pytest.raises(Waiting):
            self.end(asked, observed, server)
        assert self.end(self.confirm(asked), observed, server).changes == (Drop("app"),)
