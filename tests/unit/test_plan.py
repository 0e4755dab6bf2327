"""core/plan: who owns a role, and what is done about it. No I/O: tests give the observed state."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from pgrole_controller.core.claim import Claim, ClaimKey, Generations, Owner, Proof
from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.decision import decide, decide_absent
from pgrole_controller.core.diff import Create, Drop, GrantMembership, Rename, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
    SecretVersion,
)
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.role import Membership, ObservedRole, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Dependents, Desired, Observed, Rival, Server

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
OTHER = Owner("cluster-a", "shop", "ns-uid", "other", "uid-9")
DESIRED = Role("app", login=True)
ADDRESS = Address("db", 5432, "app", "require")
SERVER = Server(system_identifier=7, own_roles=frozenset({"keeper"}), address=ADDRESS)
POLICY = Policy()
OID = 20_000


def desired(**values: object) -> Desired:
    return replace(Desired(owner=ME, role=DESIRED), **values)  # type: ignore[arg-type]


def claim(**values: object) -> Claim:
    plain = Claim("app", OID, SERVER.system_identifier, ME, applied=digest(DESIRED))
    return replace(plain, **values)  # type: ignore[arg-type]


def look(asked: Desired, observed: Observed, *, policy: Policy = POLICY) -> Plan:
    return decide(asked, observed, SERVER, policy)


def refusal(asked: Desired, observed: Observed, *, policy: Policy = POLICY) -> PgRoleError:
    with pytest.raises(PgRoleError) as caught:
        look(asked, observed, policy=policy)
    return caught.value


FOUND = ObservedRole(OID, DESIRED)
OLDER_PASSWORD = PasswordRecord(source="uid/1/password", digest="sha256:older")


class TestRoleIdentity:
    """One test for each combination of role and claim."""

    def test_our_role_as_declared_needs_no_change(self) -> None:
        plan = look(desired(), Observed(named=FOUND, claim=claim()))
        assert not plan.writes
        assert plan.action is Action.NOTHING

    def test_a_change_to_our_role_is_drift_and_corrected(self) -> None:
        drifted = ObservedRole(OID, replace(DESIRED, superuser=True))
        plan = look(desired(), Observed(named=drifted, claim=claim()))
        assert plan.changes == (SetAttribute("app", "superuser", False),)
        assert plan.drift == ("superuser",)
        assert plan.action is Action.CORRECTED

    def test_a_renamed_role_is_renamed_back_if_its_name_is_free(self) -> None:
        plan = look(desired(), Observed(claimed=ObservedRole(OID, replace(DESIRED, name="stolen")), claim=claim()))
        assert plan.changes == (Rename("stolen", "app"),)
        assert plan.drift == ("name",)
        assert (plan.seen_as, plan.oid) == ("stolen", OID)

    def test_a_renamed_role_whose_name_is_taken_is_refused_and_the_message_names_both(self) -> None:
        observed = Observed(
            named=ObservedRole(OID + 1, DESIRED),
            claimed=ObservedRole(OID, replace(DESIRED, name="stolen")),
            claim=claim(),
        )
        error = refusal(desired(), observed)
        assert error.reason is Reason.NAME_TAKEN
        assert '"stolen"' in error.message
        assert '"app"' in error.message

    def test_a_dropped_role_is_drift_and_created_again(self) -> None:
        plan = look(desired(), Observed(claim=claim()))
        assert plan.changes == (Create(DESIRED),)
        assert plan.drift == ("role",)
        assert plan.oid is None

    def test_a_recreated_role_is_claimed_with_its_new_oid(self) -> None:
        plan = look(desired(), Observed(named=ObservedRole(OID + 5, replace(DESIRED, login=False)), claim=claim()))
        assert plan.changes == (SetAttribute("app", "login", True),)
        assert plan.oid == OID + 5
        assert plan.owner == ME
        assert plan.drift == ("role", "login")

    def test_a_role_recreated_as_declared_still_renews_the_claim(self) -> None:
        plan = look(desired(), Observed(named=ObservedRole(OID + 5, DESIRED), claim=claim()))
        assert plan.changes == ()
        assert plan.owner == ME

    def test_a_role_recreated_as_a_superuser_is_refused(self) -> None:
        observed = Observed(named=ObservedRole(OID + 5, replace(DESIRED, superuser=True)), claim=claim())
        assert refusal(desired(), observed).reason is Reason.NOT_ALLOWED

    def test_an_oid_of_another_server_is_ignored(self) -> None:
        observed = Observed(
            named=ObservedRole(OID + 5, DESIRED),
            claimed=ObservedRole(OID, Role("somebody")),
            claim=claim(system_identifier=99),
        )
        plan = look(desired(), observed)
        assert plan.changes == ()
        assert plan.drift == ()
        assert (plan.owner, plan.oid) == (ME, OID + 5)


class TestOwnership:
    def test_a_role_without_claim_is_refused_and_the_message_says_what_adoption_would_change(self) -> None:
        error = refusal(desired(), Observed(named=ObservedRole(OID, Role("app", createdb=True))))
        assert error.reason is Reason.ROLE_EXISTS
        assert "login, createdb" in error.message
        assert error.message.endswith("otherwise choose another spec.name, in a new object")

    def test_adoption_takes_over_an_unclaimed_role(self) -> None:
        plan = look(desired(adopt=True), Observed(named=ObservedRole(OID, Role("app"))))
        assert plan.action is Action.ADOPTED
        assert plan.drift == ()
        assert plan.owner == ME

    @pytest.mark.parametrize("power", ["superuser", "createrole", "replication", "bypassrls"])
    def test_adoption_of_a_role_with_an_attribute_that_the_object_may_not_have_is_refused(self, power: str) -> None:
        error = refusal(
            desired(adopt=True), Observed(named=ObservedRole(OID, Role(**{**asdict(DESIRED), power: True})))
        )
        assert error.reason is Reason.NOT_ALLOWED
        assert power in error.message

    def test_adoption_of_a_member_of_a_superuser_is_refused(self) -> None:
        error = refusal(desired(adopt=True), Observed(named=ObservedRole(OID, DESIRED, reaches=("admin",))))
        assert error.reason is Reason.NOT_ALLOWED
        assert "admin" in error.message

    def test_another_objects_claim_is_a_conflict_that_names_it_and_says_what_to_do(self) -> None:
        error = refusal(desired(adopt=True), Observed(named=FOUND, claim=claim(owner=OTHER)))
        assert error.reason is Reason.CONFLICT
        assert (
            "shop/other: choose another spec.name, in a new object. Or, to take the role over, delete that"
            in error.message
        )
        assert error.message.endswith("with spec.deletionPolicy: Retain, and set spec.adopt: true here")

    def test_the_claim_of_an_object_of_the_same_name_in_an_earlier_namespace_is_told_from_ones_own(self) -> None:
        earlier = replace(ME, object_uid="uid-0", namespace_uid="another")
        error = refusal(desired(adopt=True), Observed(named=FOUND, claim=claim(owner=earlier)))
        assert error.reason is Reason.CONFLICT
        assert "shop/orders-app of an earlier namespace shop" in error.message
        assert "ask an administrator to transfer the claim (pgrole-controller claims)" in error.message
        assert error.message.endswith("otherwise choose another spec.name, in a new object")

    def test_another_clusters_claim_is_named_with_its_cluster_and_what_to_do(self) -> None:
        error = refusal(desired(), Observed(named=FOUND, claim=claim(owner=replace(OTHER, cluster="cluster-b"))))
        assert error.reason is Reason.CLAIMED_ELSEWHERE
        assert "of cluster cluster-b: delete it there with spec.deletionPolicy: Retain, and set" in error.message

    def test_without_a_claim_the_older_of_two_objects_takes_precedence(self) -> None:
        error = refusal(desired(older_rivals=(Rival("shop/older", DESIRED, POLICY),)), Observed())
        assert error.reason is Reason.CONFLICT
        assert "shop/older" in error.message

    def test_the_older_of_two_adopters_takes_precedence_where_the_claim_of_a_third_is_released(self) -> None:
        third = claim(owner=replace(OTHER, object_uid="uid-3"), released=True)
        rival = Rival("shop/older", DESIRED, POLICY, adopt=True)
        error = refusal(desired(adopt=True, older_rivals=(rival,)), Observed(named=FOUND, claim=third))
        assert error.reason is Reason.CONFLICT
        assert "shop/older" in error.message

    def test_a_claim_takes_precedence_over_an_older_object(self) -> None:
        assert not look(
            desired(older_rivals=(Rival("shop/older", DESIRED, POLICY),)), Observed(named=FOUND, claim=claim())
        ).writes

    def test_a_recreated_object_takes_its_retained_role_back(self) -> None:
        observed = Observed(named=FOUND, claim=claim(owner=replace(ME, object_uid="uid-0"), released=True))
        plan = look(desired(), observed)
        assert plan.owner == ME
        assert plan.drift == ()

    @pytest.mark.parametrize("uid", ["uid-0", ME.object_uid])
    def test_a_role_that_replaced_a_retained_one_is_no_ones_until_it_is_adopted(self, uid: str) -> None:
        retained = claim(owner=replace(ME, object_uid=uid), released=True)
        another = Observed(named=ObservedRole(OID + 5, replace(DESIRED, login=False)), claim=retained)
        assert refusal(desired(), another).reason is Reason.ROLE_EXISTS
        assert "spec.adopt" in refusal(desired(report_only=True), another).message
        denied = refusal(desired(adopt=True), another, policy=Policy(adopt=False))
        assert "allow.adopt" in denied.message
        assert look(desired(adopt=True), another).action is Action.ADOPTED
        ended = look(desired(terminating=True, drop=True), another)
        assert (ended.changes, ended.forget) == ((), False)

    def test_on_another_server_the_name_of_a_retained_role_decides(self) -> None:
        restored = claim(owner=replace(ME, object_uid="uid-0"), released=True, system_identifier=99)
        assert look(desired(), Observed(named=ObservedRole(OID + 5, DESIRED), claim=restored)).owner == ME

    def test_a_new_namespace_of_the_same_name_inherits_nothing(self) -> None:
        old = replace(ME, object_uid="uid-0", namespace_uid="another")
        error = refusal(desired(), Observed(named=FOUND, claim=claim(owner=old, released=True)))
        assert error.reason is Reason.ROLE_EXISTS

    def test_a_retained_role_that_became_superuser_is_not_taken_back(self) -> None:
        observed = Observed(named=ObservedRole(OID, replace(DESIRED, superuser=True)), claim=claim(released=True))
        assert refusal(desired(), observed).reason is Reason.NOT_ALLOWED

    def test_status_proves_ownership_where_the_role_carries_no_claim(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        plan = look(desired(proof=proof), Observed(named=FOUND))
        assert plan.action is Action.RECLAIMED
        assert plan.owner == ME

    def test_status_does_not_prove_ownership_of_a_role_that_the_object_may_not_have(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        for terminating in (False, True):
            asked = desired(proof=proof, terminating=terminating, drop=terminating)
            error = refusal(asked, Observed(named=ObservedRole(OID, replace(DESIRED, superuser=True))))
            assert error.reason is (Reason.DROP_BLOCKED if terminating else Reason.NOT_ALLOWED)

    @pytest.mark.parametrize("wrong", [{"role_oid": 1}, {"system_identifier": 8}, {"role_name": "x"}])
    def test_status_of_another_role_or_server_proves_nothing(self, wrong: dict[str, object]) -> None:
        proof = replace(Proof("app", OID, SERVER.system_identifier, ""), **wrong)  # type: ignore[arg-type]
        assert refusal(desired(proof=proof), Observed(named=FOUND)).reason is Reason.ROLE_EXISTS

    def test_status_does_not_override_a_claim(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        assert refusal(desired(proof=proof), Observed(named=FOUND, claim=claim(owner=OTHER))).reason is Reason.CONFLICT

    @pytest.mark.parametrize("held", [None, claim(role_oid=OID + 1)])
    def test_another_objects_role_under_our_name_is_not_taken(self, held: Claim | None) -> None:
        renamed = ObservedRole(OID, DESIRED, owner_elsewhere="shop/other")
        for asked in (desired(adopt=True), desired(terminating=True, drop=True)):
            if asked.terminating and held is None:
                assert not look(asked, Observed(named=renamed)).changes
                continue
            error = refusal(asked, Observed(named=renamed, claim=held))
            assert "shop/other" in error.message

    def test_an_object_whose_status_proves_ownership_precedes_an_older_adopter(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        error = refusal(desired(adopt=True, proven_rivals=(("shop/owner", proof),)), Observed(named=FOUND))
        assert error.reason is Reason.CONFLICT
        assert error.message.endswith("shop/owner, as its status proves: choose another spec.name, in a new object")


class TestPolicy:
    @pytest.mark.parametrize("name", ["pg_read_all_data", "keeper", "rds_admin"])
    def test_protected_names_are_refused(self, name: str) -> None:
        policy = Policy(protected=("rds_*",))
        error = refusal(desired(role=Role(name), adopt=True), Observed(), policy=policy)
        assert error.reason is Reason.PROTECTED
        assert error.message.endswith("change, adopt or drop it. Choose another spec.name, in a new object")

    def test_the_bootstrap_superuser_is_refused_by_its_oid(self) -> None:
        error = refusal(desired(adopt=True), Observed(named=ObservedRole(10, Role("app", superuser=True))))
        assert error.reason is Reason.PROTECTED

    def test_attributes_beyond_the_policy_are_refused_before_anything_changes(self) -> None:
        error = refusal(desired(role=replace(DESIRED, superuser=True)), Observed())
        assert error.reason is Reason.NOT_ALLOWED
        assert "superuser" in error.message

    def test_attributes_within_the_policy_are_applied(self) -> None:
        policy = Policy(attributes=frozenset({"superuser"}))
        assert look(desired(role=replace(DESIRED, superuser=True)), Observed(), policy=policy).writes


class TestDriftPolicy:
    def test_drift_is_not_corrected_under_policy_report(self) -> None:
        drifted = ObservedRole(OID, replace(DESIRED, createdb=True))
        plan = look(desired(report_only=True), Observed(named=drifted, claim=claim()))
        assert not plan.writes
        assert plan.reported == ("createdb",)

    def test_reported_drift_does_not_keep_a_claim_that_only_status_proves_from_being_taken(self) -> None:
        drifted = ObservedRole(OID, replace(DESIRED, createdb=True))
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        asked = desired(report_only=True, proof=proof)
        plan = look(asked, Observed(named=drifted))
        assert (plan.owner, plan.changes, plan.reported) == (asked.owner, (), ("createdb",))

    def test_a_changed_spec_is_applied_under_policy_report(self) -> None:
        plan = look(desired(report_only=True), Observed(named=FOUND, claim=claim(applied="sha256:older")))
        assert plan.writes

    def test_a_role_that_appears_or_is_dropped_corrects_no_reported_drift(self) -> None:
        role = replace(DESIRED, member_of=(Membership("readers"), Membership("writers")))
        server, policy = replace(SERVER, has_current_schema=True), replace(POLICY, member_of=("*",))
        asked = desired(role=role, report_only=True, generation=3)
        held = replace(DESIRED, createdb=True, member_of=(Membership("readers"),))
        one, both = References(groups={"readers": ()}), References(groups={"readers": (), "writers": ()})
        known = Generations(object=3)
        before = claim(applied=digest(replace(role, member_of=(Membership("readers"),))), generations=known)
        plan = decide(asked, Observed(ObservedRole(OID, held), claim=before, references=both), server, policy)
        assert plan.changes == (GrantMembership("app", Membership("writers")),)
        assert plan.reported == ("createdb",)
        assert plan.applied == digest(role)
        before = claim(applied=digest(role), generations=known)
        plan = decide(asked, Observed(ObservedRole(OID, held), claim=before, references=one), server, policy)
        assert plan.changes == ()
        assert plan.reported == ("createdb",)
        assert plan.pending[0].reason is Reason.MEMBERSHIP_PENDING
        plan = decide(asked, Observed(claim=before, references=one), server, policy)
        assert not plan.writes
        assert "role" in plan.reported
        newer = replace(asked, generation=4)
        plan = decide(newer, Observed(ObservedRole(OID, held), claim=before, references=one), server, policy)
        assert plan.reported == ()
        assert SetAttribute("app", "createdb", False) in plan.changes

    @pytest.mark.parametrize(("name", "explained"), [("team_*", True), ("team_?", True), ("team_a", False)])
    def test_a_missing_name_that_looks_like_a_pattern_is_explained(self, name: str, explained: bool) -> None:
        role = replace(DESIRED, member_of=(Membership(name),), database_parameters=((name, (("a.b", "1"),)),))
        plan = decide(desired(role=role), Observed(), SERVER, replace(POLICY, member_of=("*",)))
        assert [error.reason for error in plan.pending] == [Reason.MEMBERSHIP_PENDING, Reason.DATABASE_ERROR]
        for error in plan.pending:
            assert f'"{name}"' in error.message
            assert ("names here are not patterns" in error.message) == explained

    def test_a_lost_claim_is_restored_although_drift_is_only_reported(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        drifted = ObservedRole(OID, replace(DESIRED, createdb=True))
        plan = look(desired(report_only=True, proof=proof), Observed(named=drifted))
        assert plan.action is Action.RECLAIMED
        assert (plan.owner, plan.applied, plan.changes) == (ME, digest(DESIRED), ())
        assert plan.reported == ("createdb",)

    def test_a_dropped_role_is_only_reported_where_status_alone_says_that_it_was_applied(self) -> None:
        proof = Proof("app", OID, SERVER.system_identifier, digest(DESIRED))
        plan = look(desired(report_only=True, proof=proof), Observed())
        assert (plan.reported, plan.writes) == (("role",), False)
        for asked in (desired(proof=proof), desired(report_only=True, proof=replace(proof, applied="another spec"))):
            assert look(asked, Observed()).action is Action.CREATED

    @pytest.mark.parametrize("found", [None, ObservedRole(OID + 5, DESIRED)])
    def test_a_role_that_was_dropped_or_recreated_is_not_claimed_while_that_is_only_reported(
        self, found: ObservedRole | None
    ) -> None:
        plan = look(desired(report_only=True), Observed(named=found, claim=claim()))
        assert not plan.writes
        assert "role" in plan.reported

    @pytest.mark.parametrize(
        "observed",
        [
            Observed(claimed=ObservedRole(OID, replace(DESIRED, name="moved")), claim=claim(record=OLDER_PASSWORD)),
            Observed(named=ObservedRole(OID + 5, DESIRED), claim=claim(record=OLDER_PASSWORD)),
        ],
        ids=["renamed", "recreated"],
    )
    def test_a_new_password_waits_while_a_rename_or_another_role_is_only_reported(self, observed: Observed) -> None:
        password = DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password")
        now = ObservedSecrets(password=SecretVersion("uid", "2"))
        asked = desired(report_only=True, password=password, secrets=now)
        task = look(asked, observed).password_task
        assert task is not None
        verifier = make_verifier("new", b"0123456789abcdef", 4096)
        result = PasswordResult(source="uid/2/password", verifier=verifier, password_task=task)
        plan = look(replace(asked, password_result=result), observed)
        assert not plan.writes
        assert plan.reported in (("name",), ("role",))
        back = replace(observed, named=FOUND, claimed=None)
        plan = look(replace(asked, password_result=result), back)
        assert [change.field for change in plan.changes] == ["password"]
        assert plan.reported == ()

    @pytest.mark.parametrize("limit", [-1, 7], ids=["alone", "beside drift"])
    def test_a_rotation_is_known_beside_drift_of_another_field(self, limit: int) -> None:
        day = datetime(2026, 1, 1, tzinfo=UTC)
        asked = desired(
            password=DesiredPassword(PasswordOrigin.GENERATED, rotate="1"),
            connection=DesiredSecret("delivered"),
            secrets=ObservedSecrets(connection=SecretVersion("uid", "1")),
        )
        held = ObservedRole(OID, replace(DESIRED, connection_limit=limit, password=Password("sha256:older")))
        recorded = claim(record=replace(OLDER_PASSWORD, source="uid/1", rotated_at=day))
        task = look(asked, Observed(named=held, claim=recorded)).password_task
        verifier = make_verifier("new", b"0123456789abcdef", 4096)
        result = PasswordResult(
            source="uid/2", verifier=verifier, rotated_at=day + timedelta(hours=1), rotate="1", password_task=task
        )
        plan = look(replace(asked, password_result=result), Observed(named=held, claim=recorded))
        assert plan.rotated
        if limit == 7:
            assert (plan.action, plan.drift) == (Action.CORRECTED, ("connectionLimit",))
        else:
            assert plan.action is Action.ROTATED

    def test_what_an_ignored_field_names_need_not_exist_once_the_role_does(self) -> None:
        role = replace(DESIRED, member_of=(Membership("readers"),), database_parameters=(("shop", (("a.b", "1"),)),))
        asked = desired(role=role, ignore=frozenset({"member_of", "database_parameters"}))
        new = look(asked, Observed())
        assert [error.reason for error in new.pending] == [Reason.MEMBERSHIP_PENDING, Reason.DATABASE_ERROR]
        plan = look(asked, Observed(named=FOUND, claim=claim(applied=new.applied)))
        assert not plan.writes
        assert plan.pending == ()

    def test_a_changed_spec_is_not_drift(self) -> None:
        there = ObservedRole(OID, replace(DESIRED, login=False))
        plan = look(desired(), Observed(named=there, claim=claim(applied="sha256:older")))
        assert plan.drift == ()
        assert plan.action is Action.CHANGED

    def test_a_suspended_object_changes_nothing(self) -> None:
        assert refusal(desired(suspended=True), Observed(claim=claim())).reason is Reason.SUSPENDED


class TestTheEnd:
    def test_retain_releases_the_claim_and_leaves_the_role(self) -> None:
        plan = look(desired(terminating=True), Observed(named=FOUND, claim=claim()))
        assert plan.changes == ()
        assert plan.releases == (("app", "uid-1"),)

    def test_a_released_claim_is_not_released_again(self) -> None:
        assert not look(desired(terminating=True), Observed(named=FOUND, claim=claim(released=True))).writes

    def test_drop_drops_the_role_and_forgets_the_claim(self) -> None:
        plan = look(desired(terminating=True, drop=True), Observed(named=FOUND, claim=claim()))
        assert plan.changes == (Drop("app"),)
        assert plan.forget

    def test_drop_of_a_renamed_role_drops_it_under_its_present_name(self) -> None:
        observed = Observed(claimed=ObservedRole(OID, Role("stolen")), claim=claim())
        assert look(desired(terminating=True, drop=True), observed).changes == (Drop("stolen"),)

    @pytest.mark.parametrize("held", [None, claim(owner=OTHER), claim(owner=OTHER, released=True)])
    def test_drop_changes_no_role_that_is_not_ours(self, held: Claim | None) -> None:
        plan = look(desired(terminating=True, drop=True), Observed(named=FOUND, claim=held))
        assert plan.changes == ()
        assert plan.releases == ()

    def test_drop_waits_for_dependents_and_names_them_and_the_way_out(self) -> None:
        observed = Observed(named=FOUND, claim=claim(), dependents=(Dependents("orders", 3), Dependents("", 1)))
        error = refusal(desired(terminating=True, drop=True), observed)
        assert isinstance(error, Waiting)
        assert error.reason is Reason.DROP_BLOCKED
        assert '3 in database "orders"' in error.message
        assert "Retain" in error.message

    def test_drop_of_a_role_that_was_replaced_by_a_superuser_is_blocked(self) -> None:
        observed = Observed(named=ObservedRole(OID + 1, replace(DESIRED, superuser=True)), claim=claim())
        assert refusal(desired(terminating=True, drop=True), observed).reason is Reason.DROP_BLOCKED

    def test_drop_of_a_suspended_object_is_blocked(self) -> None:
        error = refusal(desired(terminating=True, drop=True, suspended=True), Observed(named=FOUND, claim=claim()))
        assert error.reason is Reason.DROP_BLOCKED

    def test_drop_of_a_missing_role_forgets_the_claim(self) -> None:
        plan = look(desired(terminating=True, drop=True), Observed(claim=claim()))
        assert plan.changes == ()
        assert plan.forget

    def test_a_deleted_object_releases_all_its_claims(self) -> None:
        assert decide_absent(Observed(other_claims=(ClaimKey("app", "uid-1"),))).releases == (("app", "uid-1"),)

    def test_a_name_claimed_by_an_earlier_object_of_the_same_key_is_released(self) -> None:
        plan = look(desired(), Observed(named=FOUND, claim=claim(), other_claims=(ClaimKey("old_app", "uid-0"),)))
        assert plan.releases == (("old_app", "uid-0"),)
