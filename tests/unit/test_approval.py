"""core/approval and core/decision: the controller corrects exactly the approved drift, once. No I/O."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.api.status import PgRoleStatus
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import ObjectReconcile
from pgrole_controller.core.approval import (
    APPROVE,
    LONGEST,
    Approval,
    PrivilegeOffer,
    RoleOffer,
    digest_privilege_drift,
    digest_role_drift,
    read_approval,
    tell_approval,
)
from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import SetAttribute
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.outcome import of_read_back
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
    PasswordTask,
    SecretVersion,
)
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.privileges.acl import AclChange, DatabaseObject, DefaultAclChange, ObjectId, ObjectKind
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges, describe_approval
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import UNSEEN, Membership, ObservedRole, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.postgres.apply import _without
from pgrole_controller.postgres.missing_privileges import MissingPrivilege

ME = Owner("cluster-a", "shop", "ns-uid", "orders-app", "uid-1")
DESIRED = Role("app", login=True)
OID = 20_000
ADDRESS = Address("db", 5432, "app", "require")
SERVER = Server(7, frozenset({"keeper"}), ADDRESS, has_current_schema=True)
PART = "0123456789abcdef" * 2
OURS, THEIRS, OTHERS = (make_verifier(one, b"0123456789abcdef", 4096) for one in ("ours", "theirs", "others"))


def desired(approval: Approval | None = None, **values: Any) -> Desired:
    return replace(Desired(ME, DESIRED, generation=3, report_only=True, approval=approval or Approval()), **values)


def claim(**values: Any) -> Claim:
    return replace(Claim("app", OID, 7, ME, digest(DESIRED), generations=Generations(3)), **values)


def drifted(**values: Any) -> ObservedRole:
    return ObservedRole(OID, replace(DESIRED, **values))


DRIFT = drifted(createdb=True, comment="changed")


def look(asked: Desired, found: ObservedRole | None = DRIFT, server: Server = SERVER, **of_claim: Any) -> Plan:
    return decide(asked, Observed(named=found, claim=claim(**of_claim)), server, Policy())


def approve(plan: Plan, text: str = "x") -> Approval:
    assert plan.offer
    return read_approval(f"{plan.offer.digest}/{text}")


class TestTheAnnotation:
    def test_an_approval_has_parts_and_a_text(self) -> None:
        other = PART[::-1]
        read = read_approval(f"{PART}+{other}/alice: see /7")
        assert read == Approval(f"{PART}+{other}/alice: see /7", frozenset({PART, other}), "alice: see /7")

    @pytest.mark.parametrize("empty", [None, ""])
    def test_an_absent_or_empty_annotation_approves_nothing(self, empty: str | None) -> None:
        assert read_approval(empty) == Approval()
        assert not read_approval(empty).is_open("")

    @pytest.mark.parametrize(
        "made", [PART, f"{PART}/", f"/{PART}", f"{PART[1:]}/x", f"{PART.upper()}/x", f"+{PART}/x", f"{PART}++{PART}/x"]
    )
    def test_a_malformed_annotation_approves_nothing_but_counts_as_open(self, made: str) -> None:
        assert read_approval(made).parts == frozenset()
        assert read_approval(made).is_open("")

    @given(st.text(max_size=300))
    def test_an_approval_with_any_text_can_be_stored_and_described(self, text: str) -> None:
        read = read_approval(f"{PART}/{text}")
        assert len(read.value) <= 128
        assert read.value.isascii()
        assert read.value.isprintable()
        assert len(tell_approval(read)) < 300
        json.dumps(tell_approval(read)).encode()

    def test_an_oversized_annotation_approves_nothing(self) -> None:
        assert read_approval(f"{PART}/" + "x" * LONGEST).parts == frozenset()

    def test_long_texts_that_differ_only_at_the_end_give_different_values(self) -> None:
        one, two = (read_approval(f"{PART}/{'x' * 200}{number}") for number in "12")
        assert one.value != two.value
        assert one.parts == two.parts == {PART}

    def test_an_approval_covers_a_part_until_it_is_handled(self) -> None:
        read = read_approval(f"{PART}/x")
        assert read.covers(PART, "")
        assert read.covers(PART, f"{PART}/w")
        assert not read.covers(PART, read.value)
        assert not read.covers(PART[::-1], "")


class TestTheDecision:
    def test_reported_drift_is_offered_for_approval_and_not_corrected(self) -> None:
        plan = look(desired())
        assert plan.reported == ("createdb", "comment")
        assert plan.offer is not None
        assert (len(plan.offer.digest), plan.offer.fields) == (32, plan.reported)
        assert not any([plan.writes, plan.unfit, plan.approval])

    def test_approved_drift_is_corrected_as_under_policy_correct_and_the_plan_names_the_approval(self) -> None:
        approval = approve(look(desired()))
        plan, under_correct = look(desired(approval)), look(desired(report_only=False))
        assert plan.changes
        assert plan == replace(under_correct, approval=approval)
        assert (plan.action, plan.drift, plan.reported) == (Action.CORRECTED, ("createdb", "comment"), ())

    def test_a_handled_approval_never_acts_again(self) -> None:
        approval = approve(look(desired()))
        plan = look(desired(approval), approve_handled=approval.value)
        assert plan.reported
        assert plan.offer is not None
        assert plan.offer.digest in approval.parts
        assert not any([plan.writes, plan.unfit])

    def test_an_approval_with_another_text_acts_again(self) -> None:
        first, second = (approve(look(desired()), text) for text in "12")
        assert look(desired(second), approve_handled=first.value).approval == second

    @pytest.mark.parametrize(
        "found",
        [
            drifted(createdb=True),
            drifted(createdb=True, comment="changed again"),
            drifted(createdb=True, comment="changed", login=False),
            drifted(createdb=True, comment="changed", member_of=(Membership("admins"),)),
            replace(DRIFT, oid=OID + 1),
            None,
        ],
    )
    def test_drift_other_than_the_approved_one_is_not_corrected_and_the_message_says_so(
        self, found: ObservedRole | None
    ) -> None:
        plan = look(desired(approve(look(desired()))), found)
        assert plan.unfit
        assert not any([plan.writes, plan.changes, plan.approval])
        assert APPROVE in of_read_back(plan).message

    def test_of_an_approval_with_too_long_a_text_the_message_tells_the_limit(self) -> None:
        offer = look(desired()).offer
        assert offer is not None
        longest, longer = (f"{offer.digest}/{'x' * (LONGEST - len(offer.digest) + more)}" for more in (-1, 0))
        assert look(desired(read_approval(longest))).approval
        plan = look(desired(read_approval(longer)))
        assert plan.unfit
        assert "or has more than 2,048 characters" in of_read_back(plan).message

    def test_an_approval_does_not_hold_for_another_object_generation_or_server(self) -> None:
        approval = approve(look(desired()))
        assert look(desired(approval, generation=4)).unfit
        owner = replace(ME, object_uid="uid-2")
        assert look(desired(approval, owner=owner), owner=owner).unfit
        elsewhere = replace(SERVER, system_identifier=8)
        assert look(desired(approval), server=elsewhere, system_identifier=8).unfit

    def test_an_approval_without_drift_has_no_effect(self) -> None:
        plan = look(desired(approve(look(desired()))), ObservedRole(OID, DESIRED))
        assert not any([plan.writes, plan.unfit, plan.reported])

    def test_a_dropped_role_is_created_again_after_approval(self) -> None:
        approval = approve(look(desired(), None))
        assert look(desired(approval), None).changes == look(desired(report_only=False), None).changes

    def test_a_role_with_another_oid_is_claimed_after_approval(self) -> None:
        other = ObservedRole(OID + 1, DESIRED)
        plan = look(desired(), other)
        assert (plan.reported, plan.writes) == (("role",), False)
        assert look(desired(approve(plan)), other).owner == ME

    def test_a_role_that_someone_created_again_gets_its_password_only_after_approval_though_it_cannot_be_read(
        self,
    ) -> None:
        secret = SecretVersion("s-uid", "1")
        asked = desired(
            password=DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password"),
            secrets=ObservedSecrets(password=secret),
        )
        record = PasswordRecord(source=f"{secret}/password", digest=OURS.digest)
        again = ObservedRole(OID + 1, replace(DESIRED, password=UNSEEN))
        task = look(asked, again, record=record).password_task
        assert task is not None
        found = replace(asked, password_result=PasswordResult(password_task=task, source=record.source, verifier=OURS))
        plan = look(found, again, record=record)
        assert (plan.reported, plan.writes, plan.record) == (("role",), False, None)
        elsewhere = replace(SERVER, system_identifier=8)
        assert look(asked, again, elsewhere, record=record).password_task is None
        plan = look(replace(found, approval=approve(plan)), again, record=record)
        assert plan.changes == (SetAttribute("app", "password", Password(OURS.digest)),)

    def test_approved_drift_is_not_corrected_while_the_api_server_is_unreachable(self) -> None:
        with pytest.raises(PgRoleError):
            look(desired(approve(look(desired()))), server=replace(SERVER, enforcing=True))

    def test_drift_is_not_offered_where_the_claim_cannot_record_an_approval(self) -> None:
        """The database has the schema of the previous release."""
        plan = look(desired(approve(look(desired()))), server=replace(SERVER, has_current_schema=False))
        assert plan.reported
        assert not any([plan.offer, plan.unfit, plan.writes])

    def test_drift_is_offered_where_claims_are_kept_in_status(self) -> None:
        status = replace(SERVER, claims="Status", has_current_schema=False)
        approval = approve(look(desired(), server=status))
        assert look(desired(approval), server=status).approval == approval

    @given(
        st.builds(
            Role,
            name=st.just("app"),
            login=st.booleans(),
            createdb=st.booleans(),
            connection_limit=st.integers(-1, 3),
            comment=st.sampled_from([None, "a", "b"]),
            parameters=st.sampled_from([(), (("work_mem", "1MB"),), (("work_mem", "2MB"),)]),
        ),
        st.booleans(),
    )
    def test_only_the_approved_drift_is_corrected(self, found: Role, handled: bool) -> None:
        approval = approve(look(desired()))
        seen = ObservedRole(OID, found)
        plan = look(desired(approval), seen, approve_handled=approval.value if handled else "")
        if found == DRIFT.role and not handled:
            assert plan.changes == look(desired(report_only=False), seen).changes
            assert plan.approval == approval
        else:
            assert not any([plan.changes, plan.owner, plan.approval])

    def test_approved_drift_is_corrected_completely_or_not_at_all(self) -> None:
        """If the controller lacks a privilege for some of it, the rest would be another drift."""
        plan = look(desired(approve(look(desired()))))
        lacking = [MissingPrivilege(plan.changes[0], "ALTER ROLE app NOCREATEDB")]
        assert _without(plan, lacking) is None
        assert _without(replace(plan, approval=None), lacking) is not None


class TestApprovedPasswords:
    FROM_SECRET = DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password")
    SECRET = SecretVersion("s-uid", "1")
    RECORD = PasswordRecord(source="s-uid/1/password", digest=OURS.digest)

    def look(self, approval: Approval | None, stored: str, *, answered: bool = True, record: Any = None) -> Plan:
        asked = desired(approval, password=self.FROM_SECRET, secrets=ObservedSecrets(password=self.SECRET))
        found = drifted(password=Password(stored))
        first = look(asked, found, record=record or self.RECORD)
        assert isinstance(first.password_task, PasswordTask)
        if not answered:
            return first
        salted = make_verifier("ours", stored[-16:].encode(), 4096)
        brought = PasswordResult("s-uid/1/password", verifier=salted, password_task=first.password_task)
        return look(replace(asked, password_result=brought), found, record=record or self.RECORD)

    def spoiled(self, approval: Approval | None = None, **of_claim: Any) -> Plan:
        """The plan for drift of a comment and of a generated password whose connection Secret someone changed."""
        asked = desired(
            approval,
            password=DesiredPassword(PasswordOrigin.GENERATED),
            connection=DesiredSecret("delivered"),
            secrets=ObservedSecrets(connection=SecretVersion("s-uid", "2")),
        )
        found = drifted(comment="changed", password=Password(THEIRS.digest))
        record = PasswordRecord(source="s-uid/1", digest=OURS.digest, connection="s-uid/1 x ")
        first = look(asked, found, record=record, **of_claim)
        brought = PasswordResult(spoiled=True, password_task=first.password_task)
        return look(replace(asked, password_result=brought), found, record=record, **of_claim)

    def test_a_password_beside_a_spoiled_secret_is_reported_and_not_offered_with_the_rest(self) -> None:
        plan = self.spoiled()
        assert (plan.reported, plan.changes) == (("comment", "password", "connectionSecret"), ())
        stored = pack({"metadata": {"namespace": "shop", "name": "app", "uid": "uid-1", "resourceVersion": "1"}})
        attempt = ObjectReconcile(Target(stored.key, stored, desired()), Contests())
        attempt.observe(Observed(named=DRIFT, claim=claim()), plan, SERVER)
        offer = attempt.conclude().offer
        assert offer is not None
        assert offer.fields == ("comment",)
        approved = self.spoiled(approve(plan))
        assert approved.approval is not None
        assert [change.field for change in approved.changes] == ["comment"]
        assert approved.reported == ("password", "connectionSecret")

    def test_a_password_beside_a_spoiled_secret_is_no_drift_after_another_spec(self) -> None:
        assert self.spoiled(applied="sha256:older", generations=Generations(2)).reported == ("connectionSecret",)

    def test_hashing_the_password_again_does_not_change_the_digest(self) -> None:
        plan = self.look(None, THEIRS.digest)
        assert plan.reported == ("password",)
        approval = approve(plan)
        assert self.look(approval, THEIRS.digest).approval == approval

    def test_an_approval_does_not_hold_for_another_observed_password(self) -> None:
        assert self.look(approve(self.look(None, THEIRS.digest)), OTHERS.digest).unfit

    def test_the_digest_depends_on_the_claim_and_not_only_on_the_verifier(self) -> None:
        others = replace(self.RECORD, digest=OTHERS.digest)
        assert self.look(None, THEIRS.digest).offer != self.look(None, THEIRS.digest, record=others).offer

    def test_nothing_is_decided_before_the_password_is_known(self) -> None:
        """The approved drift may be only a part of the drift reported then."""
        found = drifted(createdb=True, password=Password(THEIRS.digest))
        asked = desired(password=self.FROM_SECRET, secrets=ObservedSecrets(password=self.SECRET))
        plan = look(asked, found, record=self.RECORD)
        assert plan.password_task
        approval = approve(plan)
        plan = look(replace(asked, approval=approval), found, record=self.RECORD)
        assert not any([plan.changes, plan.approval, plan.unfit])


class TestTheDigest:
    def test_text_that_is_not_valid_utf8_can_be_hashed(self) -> None:
        change = SetAttribute("app", "comment", "\udcff")
        assert len(digest_role_drift((1,), [change], {"comment": "\udcff"}, "")) == 32

    def test_the_privilege_digest_ignores_only_the_order_of_objects(self) -> None:
        table = DatabaseObject(ObjectId("pg_class", 1), ObjectKind.TABLE, "app", "orders", 10, "postgres")
        one = AclChange(table, 5, "app", ("DELETE",), revoke=True)
        two = AclChange(replace(table, id=ObjectId("pg_class", 2), name="lines"), 5, "app", ("SELECT",))
        default = DefaultAclChange(10, "postgres", "app", "r", 5, "app", ("SELECT",))
        plain = digest_privilege_drift(("db",), [one, two], [default])
        assert plain == digest_privilege_drift(("db",), [two, one], [default])
        others = [
            digest_privilege_drift(("other",), [one, two], [default]),
            digest_privilege_drift(("db",), [one], [default]),
            digest_privilege_drift(("db",), [one, two], []),
            digest_privilege_drift(("db",), [one, replace(two, columns=("id",))], [default]),
            digest_privilege_drift(("db",), [replace(one, revoke=False), two], [default]),
            digest_privilege_drift(("db",), [replace(one, grantor="bob"), two], [default]),
            digest_privilege_drift(("db",), [replace(one, option_only=True), two], [default]),
            digest_privilege_drift(("db",), [one, two], [replace(default, privileges=("DELETE",))]),
        ]
        assert len({plain, *others}) == len(others) + 1


class TestApprovalStatus:
    GRANTEE = Grantee(Key("shop", "app"), "uid-1", 1, "app", OID, {"orders": DatabasePrivileges("orders")})

    def known(self, **values: Any) -> GrantedPrivileges:
        made = PrivilegeResult(self.GRANTEE.key, "uid-1", "orders", self.GRANTEE.digest_of("orders"), **values)
        return GrantedPrivileges(self.GRANTEE, {"orders": made})

    def test_status_names_every_part_and_fits_the_crd(self) -> None:
        values: Mapping[str, Mapping[str, str]] = {"comment": {"declared": "", "observed": "\x1b[2J"}}
        privileges = self.known(offer=PrivilegeOffer("b" * 32, ("DELETE on table app.orders was granted",)))
        described = describe_approval(RoleOffer("a" * 32, ("comment", "password"), values), privileges, "before")
        assert described == {
            "digest": f"{'a' * 32}+{'b' * 32}",
            "fields": [{"name": "comment", "declared": "", "observed": "\\x1b[2J"}, {"name": "password"}],
            "databases": [{"name": "orders", "changes": ["DELETE on table app.orders was granted"]}],
            "handled": "before",
        }
        PgRoleStatus.model_validate({"approval": described})

    def test_status_without_drift_has_only_handled_approvals(self) -> None:
        assert describe_approval(None, None, "") == {}
        assert describe_approval(None, self.known(approve_handled="x"), "") == {
            "databases": [{"name": "orders", "handled": "x"}]
        }
