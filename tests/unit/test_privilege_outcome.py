"""core/outcome, core/privileges/granted_privileges, core/drift_record: how status shows a role's privileges."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgrole_controller.api.status import PgRoleStatus
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.drift_record import LARGEST, MOST, DriftRecord, extend_history
from pgrole_controller.core.errors import DropInterrupted, PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.outcome import (
    LONGEST_MESSAGE,
    PROGRESSING,
    RECONCILED,
    Outcome,
    Phase,
    add_privileges,
    of_error,
    of_read_back,
)
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    PrivilegePolicy,
    Refusal,
    SchemaAccess,
)
from pgrole_controller.core.privileges.privilege_policy import find_problems
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, PrivilegeDrift, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import StatusDetails, build_status

KEY = Key("shop", "app")
ALL = PrivilegePolicy(databases=("*",), but=("template*",))
DECLARED = {name: DatabasePrivileges(name) for name in ("lake", "orders")}
GRANTEE = Grantee(KEY, "uid-1", 1, "app", 20_000, DECLARED, policy=ALL)
NOW = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
CLAIM = Claim("app", 20_000, 7, Owner("c", "shop", "ns", "app", "uid-1"), applied="sha256:x", drift_count=2)
BY = DriftAuthor(Evidence.TRANSACTION, "alice", "boss", "psql", "10.2.3.4", NOW, "GRANT DELETE ON app.orders TO app")
DRIFT = PrivilegeDrift(NOW, ("DELETE on table app.orders was granted",), 1, corrected=True, by=BY)


def result(database: str, error: PgRoleError | None = None, **values: object) -> PrivilegeResult:
    plain = PrivilegeResult(KEY, "uid-1", database, GRANTEE.digest_of(database), error)
    return replace(plain, **values)  # type: ignore[arg-type]


def known(*results: PrivilegeResult, **values: object) -> GrantedPrivileges:
    plain = GrantedPrivileges(GRANTEE, {one.database: one for one in results})
    return replace(plain, **values)  # type: ignore[arg-type]


def merge(privileges: GrantedPrivileges, outcome: Outcome = RECONCILED) -> Outcome:
    return add_privileges(outcome, privileges, ["orders", "lake"])


LAKE, ORDERS = result("lake"), result("orders")


def test_status_shows_no_database_as_declared_while_the_object_is_refused() -> None:
    refused = known(LAKE, result("orders", reported=("x",)), grantee=replace(GRANTEE, refused=Refusal.KNOWN))
    assert [(one["ready"], one["reason"]) for one in refused.describe()] == [
        (False, "PrivilegePending"),
        (False, "DriftReported"),
    ]


class TestTheOutcome:
    def test_the_object_is_ready_when_every_database_confirmed_the_current_declaration(self) -> None:
        outcome = merge(known(LAKE, ORDERS))
        assert (outcome.phase, outcome.reason) == (Phase.DONE, Reason.RECONCILED)
        assert outcome.message == "the role and its privileges match the spec"

    def test_creators_without_schemas_are_said_to_have_no_effect(self) -> None:
        schemas = (SchemaAccess("app", frozenset({Access.READ})),)
        declared = {
            "lake": DatabasePrivileges("lake", created_by=("boss",)),
            "orders": DatabasePrivileges("orders", schemas=schemas, created_by=("boss",)),
        }
        grantee = replace(GRANTEE, declared=declared)
        done = (PrivilegeResult(KEY, "uid-1", name, grantee.digest_of(name), None) for name in declared)
        outcome = merge(known(*done, grantee=grantee))
        assert (outcome.phase, outcome.reason) == (Phase.DONE, Reason.RECONCILED)
        assert outcome.message.startswith("the role and its privileges match the spec; spec.privileges: createdBy ")
        assert 'no effect in database "lake", for which no schemas are listed: list them' in outcome.message

    def test_ignored_privileges_are_not_said_to_match(self) -> None:
        outcome = merge(known(LAKE, ORDERS, grantee=replace(GRANTEE, ignored=True)))
        assert (outcome.phase, outcome.message) == (Phase.DONE, RECONCILED.message)

    def test_without_privileges_the_outcome_is_that_of_the_role(self) -> None:
        assert add_privileges(RECONCILED, GrantedPrivileges(), []) is RECONCILED

    @pytest.mark.parametrize("other", [None, replace(ORDERS, digest="sha256:y"), replace(ORDERS, uid="uid-0")])
    def test_the_outcome_names_a_database_that_has_not_answered(self, other: PrivilegeResult | None) -> None:
        outcome = merge(known(LAKE, *([other] if other else [])))
        assert (outcome.phase, outcome.reason) == (Phase.WORKING, Reason.PROGRESSING)
        assert outcome.message == 'privileges in database "orders" are being applied'
        assert not outcome.retried

    def test_results_do_not_count_without_a_published_grantee(self) -> None:
        assert merge(known(LAKE, ORDERS, grantee=None)).reason is Reason.PROGRESSING

    def test_reported_drift_of_a_dropped_role_waits_for_no_database(self) -> None:
        reported = Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, "role")
        assert merge(GrantedPrivileges(), reported) is reported

    @pytest.mark.parametrize(
        ("error", "phase"),
        [
            (Waiting(Reason.PRIVILEGE_PENDING, "schema app does not exist"), Phase.WORKING),
            (Refused(Reason.NOT_ALLOWED, "the policy says no"), Phase.STALLED),
            (Transient(Reason.DATABASE_ERROR, "a lock"), Phase.WORKING),
        ],
    )
    def test_a_databases_error_is_reported_and_its_worker_retries(self, error: PgRoleError, phase: Phase) -> None:
        outcome = merge(known(LAKE, replace(ORDERS, error=error)))
        assert (outcome.phase, outcome.reason) == (phase, error.reason)
        assert outcome.message == f'privileges in database "orders": {error.message}'
        assert not outcome.retried

    def test_the_messages_of_all_databases_are_named_and_a_refusal_gives_the_reason(self) -> None:
        waiting = Waiting(Reason.PRIVILEGE_PENDING, 'database "lake" does not exist yet')
        refused = Refused(Reason.NOT_ALLOWED, 'database "orders": the policy says no')
        for here, problems in ((replace(LAKE, error=waiting), {}), (LAKE, {"lake": waiting})):
            outcome = merge(known(here, replace(ORDERS, error=refused), problems=problems))
            assert (outcome.phase, outcome.reason) == (Phase.STALLED, Reason.NOT_ALLOWED)
            assert outcome.message == f"{refused.message}; {waiting.message}"
        equal = Waiting(Reason.PRIVILEGE_PENDING, "schema app does not exist")
        outcome = merge(known(replace(LAKE, error=equal), replace(ORDERS, error=equal)))
        both = [f'privileges in database "{name}": {equal.message}' for name in ("lake", "orders")]
        assert outcome.message == "; ".join(both)

    def test_a_refusal_goes_before_what_is_pending_for_the_role_although_another_database_is_closed(self) -> None:
        own = of_error(Waiting(Reason.MEMBERSHIP_PENDING, "a role does not exist"))
        closed = Waiting(Reason.PRIVILEGE_PENDING, 'database "lake" does not accept connections')
        refused = Refused(Reason.NOT_ALLOWED, 'database "orders": the policy says no')
        outcome = merge(known(replace(LAKE, error=closed), replace(ORDERS, error=refused)), own)
        assert (outcome.phase, outcome.reason) == (Phase.STALLED, Reason.NOT_ALLOWED)
        assert outcome.message == f"{refused.message}; {closed.message}; {own.message}"

    @pytest.mark.parametrize("length", [100, 3000])
    def test_the_databases_whose_messages_do_not_fit_are_only_named(self, length: int) -> None:
        declared = {f"d{number:02}": DatabasePrivileges(f"d{number:02}") for number in range(16)}
        grantee, long = replace(GRANTEE, declared=declared), "x" * length
        errors = {name: Waiting(Reason.PRIVILEGE_PENDING, f'"{name}" {long} create it') for name in declared}
        errors["d15"] = Refused(Reason.NOT_ALLOWED, f'"d15" {long} change it')  # type: ignore[assignment]
        results = [result(name, error, digest=grantee.digest_of(name)) for name, error in errors.items()]
        outcome = add_privileges(RECONCILED, known(*results, grantee=grantee), list(declared))
        assert (outcome.phase, outcome.reason) == (Phase.STALLED, Reason.NOT_ALLOWED)
        assert len(outcome.message) <= LONGEST_MESSAGE
        assert outcome.message.startswith('"d15" xxx')
        assert "xxx change it" in outcome.message
        if length == 100:
            named = '"d04", "d05", "d06", "d07", "d08" and 6 more'
            assert outcome.message.endswith(f"; {errors['d03'].message} (also not as declared in {named})")
        else:
            named = '"d00", "d01", "d02", "d03", "d04" and 10 more'
            assert outcome.message.endswith(f"change it (also not as declared in {named})")

    def test_a_missing_database_is_looked_for_although_another_has_a_mistake_in_the_spec(self) -> None:
        problems = {"orders": Waiting(Reason.PRIVILEGE_PENDING, 'database "orders" does not exist yet')}
        invalid = Refused(Reason.INVALID_SPEC, 'database "lake": MAINTAIN requires PostgreSQL 17')
        outcome = merge(known(replace(LAKE, error=invalid), problems=problems))
        assert (outcome.phase, outcome.reason, outcome.retried) == (Phase.STALLED, Reason.INVALID_SPEC, True)

    def test_a_problem_that_the_databases_workers_cannot_know_of_is_retried(self) -> None:
        problems = {"orders": Waiting(Reason.PRIVILEGE_PENDING, 'database "orders" does not exist yet')}
        outcome = merge(known(LAKE, problems=problems))
        assert outcome.reason is Reason.PRIVILEGE_PENDING
        assert outcome.retried

    def test_former_privileges_that_cannot_be_revoked_are_explained_and_retried(self) -> None:
        former = replace(GRANTEE, declared={"lake": DECLARED["lake"]}, former={"orders": (DECLARED["orders"],)})
        refused = Refused(Reason.NOT_ALLOWED, "PgServer.spec.databases does not include it")
        answered = replace(ORDERS, digest=former.digest_of("orders"), error=refused)
        outcome = merge(known(LAKE, answered, grantee=former))
        assert (outcome.phase, outcome.reason, outcome.retried) == (Phase.STALLED, Reason.NOT_ALLOWED, True)
        assert outcome.message == (
            'database "orders" is no longer in spec.privileges, but the role may still have privileges there, and the '
            "controller cannot revoke them: PgServer.spec.databases does not include it. Let the controller connect "
            "there, or revoke them by hand"
        )

    def test_former_privileges_in_a_database_that_can_only_be_dropped_are_not_to_be_revoked(self) -> None:
        former = replace(GRANTEE, declared={"lake": DECLARED["lake"]}, former={"orders": (DECLARED["orders"],)})
        answered = replace(ORDERS, digest=former.digest_of("orders"), error=DropInterrupted("orders"))
        outcome = merge(known(LAKE, answered, grantee=former))
        assert outcome.reason is Reason.PRIVILEGE_PENDING
        assert outcome.message.endswith("was interrupted: run DROP DATABASE again")

    def test_a_problem_of_the_role_itself_takes_precedence(self) -> None:
        for own in (PROGRESSING, of_error(Refused(Reason.CONFLICT, "x"))):
            assert merge(known(), own) is own

    def test_what_is_pending_for_the_role_does_not_hide_a_databases_error(self) -> None:
        own = of_error(Waiting(Reason.MEMBERSHIP_PENDING, "a role does not exist"))
        waiting = Waiting(Reason.PRIVILEGE_PENDING, 'database "orders": waiting for table app.later')
        outcome = merge(known(LAKE, replace(ORDERS, error=waiting)), own)
        assert (outcome.phase, outcome.reason, outcome.retried) == (Phase.WORKING, Reason.MEMBERSHIP_PENDING, True)
        assert outcome.message == f"{own.message}; {waiting.message}"
        refused = Refused(Reason.NOT_ALLOWED, 'database "orders": the policy says no')
        outcome = merge(known(LAKE, replace(ORDERS, error=refused)), own)
        assert (outcome.phase, outcome.reason, outcome.retried) == (Phase.STALLED, Reason.NOT_ALLOWED, True)
        assert outcome.message == f"{refused.message}; {own.message}"
        assert merge(known(LAKE), own) is own

    def test_reported_drift_is_detected_also_while_something_is_pending(self) -> None:
        reporting = replace(GRANTEE, report_only=True)
        drifted = replace(ORDERS, reported=("DELETE on table app.orders",))
        own = of_error(Waiting(Reason.MEMBERSHIP_PENDING, "a role does not exist"))
        missing = Waiting(Reason.PRIVILEGE_PENDING, 'database "lake": waiting for table app.later')
        for outcome, pending in (
            (merge(known(LAKE, drifted, grantee=reporting), own), own.message),
            (merge(known(replace(LAKE, error=missing), drifted, grantee=reporting)), missing.message),
        ):
            assert (outcome.phase, outcome.reason) == (Phase.WORKING, Reason.DRIFT_REPORTED)
            assert outcome.message.endswith(f"Report: DELETE on table app.orders (database orders); {pending}")

    def test_drift_that_is_only_reported_is_described_with_its_database(self) -> None:
        reporting = replace(GRANTEE, report_only=True)
        outcome = merge(known(LAKE, replace(ORDERS, reported=("DELETE on table app.orders",)), grantee=reporting))
        assert (outcome.phase, outcome.reason) == (Phase.PAUSED, Reason.DRIFT_REPORTED)
        assert "spec.drift.policy is Report: DELETE on table app.orders (database orders)" in outcome.message

    def test_drift_of_privileges_and_of_the_role_is_reported_together(self) -> None:
        own = of_read_back(Plan("app", reported=("login",)))
        outcome = merge(known(LAKE, replace(ORDERS, reported=("DELETE on table app.orders",))), own)
        assert outcome.message.endswith("Report: login; DELETE on table app.orders (database orders)")
        assert not outcome.by_databases, "no database's worker announces the drift of the role"
        assert merge(known(LAKE, ORDERS), own) == own

    def test_drift_of_the_role_is_reported_while_privileges_are_pending(self) -> None:
        own = of_read_back(Plan("app", reported=("login",)))
        error = Waiting(Reason.PRIVILEGE_PENDING, "waiting for table app.later")
        outcome = merge(known(LAKE, replace(ORDERS, error=error)), own)
        assert (outcome.phase, outcome.reason, outcome.by_databases) == (Phase.WORKING, Reason.DRIFT_REPORTED, False)
        assert outcome.message.endswith('Report: login; privileges in database "orders": waiting for table app.later')

    @pytest.mark.parametrize("report_only", [False, True])
    def test_undeclarable_privileges_are_reported_under_any_policy(self, report_only: bool) -> None:
        found = replace(ORDERS, reported=("USAGE on type app.mood",), declarable=False)
        outcome = merge(known(LAKE, found, grantee=replace(GRANTEE, report_only=report_only)))
        assert outcome.reason is Reason.DRIFT_REPORTED
        assert outcome.message.startswith("privileges that no PgRole can declare")


class TestProblems:
    def test_only_a_missing_database_that_is_declared_is_pending(self) -> None:
        grantee = replace(GRANTEE, former={"gone": (DatabasePrivileges("gone"),)})
        problems = find_problems(grantee, frozenset({"orders"}))
        assert {name: error.reason for name, error in problems.items()} == {"lake": Reason.PRIVILEGE_PENDING}
        assert problems["lake"].message.endswith('"lake" does not exist yet: create it, or remove it from spec')

    def test_a_missing_database_whose_name_looks_like_a_pattern_is_explained(self) -> None:
        grantee = replace(GRANTEE, declared={name: DatabasePrivileges(name) for name in ("*", "lake")})
        problems = find_problems(grantee, frozenset({"orders"}))
        assert '"*" does not exist yet' in problems["*"].message
        assert problems["*"].message.endswith("(names here are not patterns: * and ? match only themselves)")
        assert "patterns" not in problems["lake"].message

    def test_a_database_that_the_policy_excludes_is_refused_with_the_field(self) -> None:
        problems = find_problems(replace(GRANTEE, policy=PrivilegePolicy()), frozenset(DECLARED))
        assert {(type(one), one.reason) for one in problems.values()} == {(Refused, Reason.NOT_ALLOWED)}
        assert all("spec.privileges" in one.message for one in problems.values())
        former = replace(GRANTEE, declared={}, former={name: (one,) for name, one in DECLARED.items()})
        problems = find_problems(replace(former, policy=PrivilegePolicy(databases=())), frozenset(DECLARED))
        assert problems.keys() == DECLARED.keys()
        assert all("Remove it" not in one.message for one in problems.values())


def build(
    privileges: GrantedPrivileges | None, previous: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    details = StatusDetails(more.pop("claim", CLAIM), privileges=privileges, **more)
    status = build_status(previous or {}, RECONCILED, details, "default", 3, NOW + timedelta(hours=1))
    PgRoleStatus.model_validate(status)
    return status


class TestPrivilegeStatus:
    def test_status_names_each_database_with_its_state(self) -> None:
        error = Refused(Reason.NOT_ALLOWED, "the policy says no")
        assert build(known(LAKE))["privileges"] == [
            {"database": "lake", "ready": True, "reason": "Reconciled"},
            {
                "database": "orders",
                "ready": False,
                "reason": "Progressing",
                "message": "the privileges are being applied",
            },
        ]
        refused = build(known(LAKE, replace(ORDERS, error=error)))["privileges"][1]
        assert (refused["reason"], refused["message"]) == ("NotAllowed", "the policy says no")

    def test_former_databases_never_keep_a_declared_one_out(self) -> None:
        former = {f"a{number:02}": (DatabasePrivileges(f"a{number:02}"),) for number in range(40)}
        entries = build(known(grantee=replace(GRANTEE, former=former)))["privileges"]
        names = [entry["database"] for entry in entries]
        assert (names, len(names)) == (sorted({*DECLARED, *list(former)[:30]}), 32)

    def test_a_former_database_is_named_until_it_confirms(self) -> None:
        grantee = replace(GRANTEE, declared={}, former={"lake": (DECLARED["lake"],)})
        confirmed = {"lake": replace(LAKE, digest=grantee.digest_of("lake"))}
        for results, state in ({}, "are being revoked"), (confirmed, "are revoked"):
            (one,) = build(GrantedPrivileges(grantee, results))["privileges"]
            assert (one["database"], one["ready"]) == ("lake", False)
            assert one["message"] == f"privileges that the object declared before {state}"
        assert "privileges" not in build(GrantedPrivileges())

    def test_status_is_kept_while_nothing_is_known_and_removed_with_the_field(self) -> None:
        before = build(known(LAKE, ORDERS))
        assert build(None, before, claim=None)["privileges"] == before["privileges"]
        assert "privileges" not in build(None, before)

    def test_the_last_drift_is_the_latest_of_role_and_databases(self) -> None:
        earlier = replace(CLAIM, last_drift_at=NOW - timedelta(seconds=5), last_drift_fields=("login",))
        status = build(known(LAKE, replace(ORDERS, last_drifts=(DRIFT,), drift_count=3)), claim=earlier)
        assert status["lastDrift"] == {
            "time": "2026-05-06T07:08:09Z",
            "fields": ["privileges"],
            "corrected": True,
            "database": "orders",
            "details": ["DELETE on table app.orders was granted"],
            "by": {"login": "alice", "role": "boss", "time": "2026-05-06T07:08:09Z", "proof": "Transaction"},
        }
        assert status["driftCount"] == 5
        later = replace(earlier, last_drift_at=NOW + timedelta(seconds=5))
        assert build(known(replace(ORDERS, last_drifts=(DRIFT,))), claim=later)["lastDrift"]["fields"] == ["login"]

    def test_everyone_who_caused_drift_in_one_round_is_named(self) -> None:
        other = PrivilegeDrift(
            NOW - timedelta(seconds=1),
            tuple(f"INSERT on table app.t{n} was granted" for n in range(9)),
            9,
            corrected=True,
            by=replace(BY, login="bob"),
        )
        unknown = replace(other, words=("USAGE on schema app was revoked",), count=1, by=DriftAuthor())
        status = build(known(replace(ORDERS, last_drifts=(unknown, other, DRIFT))))
        assert status["lastDrift"]["by"]["login"] == "alice"
        assert status["lastDrift"]["details"] == [
            "DELETE on table app.orders was granted",
            "INSERT on table app.t0 was granted by bob",
            "INSERT on table app.t1 was granted by bob",
            "INSERT on table app.t2 was granted, and 6 more by bob",
            "USAGE on schema app was revoked by an unknown login",
        ]
        assert {one.get("by", {}).get("login") for one in status["driftHistory"]} == {"alice", "bob", None}
        many = tuple(replace(other, by=replace(BY, login=f"u{n}")) for n in range(30))
        assert len(build(known(replace(ORDERS, last_drifts=many)))["lastDrift"]["details"]) == 10

    def test_the_last_drift_survives_a_restart(self) -> None:
        before = build(known(replace(ORDERS, last_drifts=(DRIFT,), drift_count=3)))
        claim = replace(CLAIM, last_drift_at=NOW - timedelta(seconds=5), last_drift_fields=("login",))
        after = build(known(ORDERS), before, claim=claim)
        assert (after["lastDrift"], after["driftCount"]) == (before["lastDrift"], before["driftCount"])

    def test_address_application_and_statement_are_shown_only_where_the_owner_exposes_them(self) -> None:
        shown = build(known(replace(ORDERS, last_drifts=(DRIFT,))), exposes_all=True)["lastDrift"]["by"]
        assert (shown["application"], shown["address"]) == ("psql", "10.2.3.4")
        assert shown["statement"].startswith("GRANT DELETE")
        assert not {"application", "address", "statement"} & set(
            build(known(replace(ORDERS, last_drifts=(DRIFT,))))["lastDrift"]["by"]
        )

    def test_an_unknown_cause_and_a_name_in_another_encoding_are_written(self) -> None:
        odd = replace(DRIFT, by=DriftAuthor(Evidence.STATISTICS, "al\udcefce"), words=("x\udcff",))
        status = build(known(replace(ORDERS, last_drifts=(odd,))))
        assert json.dumps(status, ensure_ascii=False).encode()
        assert status["lastDrift"]["by"]["login"] == "al\\xefce"
        nameless = replace(DRIFT, by=DriftAuthor())
        assert build(known(replace(ORDERS, last_drifts=(nameless,))))["lastDrift"]["by"] == {"proof": "None"}


class TestHistory:
    def test_every_drift_is_in_the_history_once_and_the_newest_comes_first(self) -> None:
        claim = replace(CLAIM, last_drift_at=NOW - timedelta(seconds=5), last_drift_fields=("login",))
        first = build(None, claim=claim)
        assert first["driftHistory"] == [
            {"time": "2026-05-06T07:08:04Z", "fields": ["login"], "count": 1, "corrected": True}
        ]
        privileges = known(replace(ORDERS, last_drifts=(DRIFT,)))
        second = build(privileges, first, claim=claim)
        assert [one["fields"] for one in second["driftHistory"]] == [["privileges"], ["login"]]
        assert second["driftHistory"][0]["by"] == {"login": "alice", "proof": "Transaction"}
        assert build(privileges, second, claim=claim)["driftHistory"] == second["driftHistory"]

    def test_a_reported_drift_is_in_the_history_once(self) -> None:
        first = build(None, reported=("login",))
        assert [one["corrected"] for one in first["driftHistory"]] == [False]
        assert build(None, first, reported=("login",)) == first

    def test_the_history_keeps_ten_entries(self) -> None:
        records = [DriftRecord(NOW + timedelta(seconds=n), ("login",), True, 1) for n in range(15)]
        latest = records[-1].time
        history = extend_history(extend_history([], records[:12], latest), records[12:], latest)
        assert [one["time"][-3:-1] for one in history] == [f"{n:02}" for n in range(23, 13, -1)]
        assert len(history) == MOST

    def test_the_newest_of_one_second_comes_first_also_when_one_is_recorded_again(self) -> None:
        moments = [NOW.replace(microsecond=n) for n in range(4)]
        records = [DriftRecord(moment, (f"f{n}",), True, 1) for n, moment in enumerate(moments)]
        first = extend_history([], [records[1], records[0]], NOW)
        last = extend_history(extend_history(first, records[2:], NOW), records[:1], NOW)
        assert [one["fields"] for one in first] == [["f1"], ["f0"]]
        assert [one["fields"] for one in last] == [["f3"], ["f2"], ["f1"], ["f0"]]

    def test_a_history_entry_is_bounded_in_size(self) -> None:
        words = tuple("é" * 300 for _ in range(9))
        record = DriftRecord(NOW, tuple("x" * 60 for _ in range(60)), True, 9, "d" * 63, words, BY)
        (entry,) = extend_history([], [record], NOW)
        assert len(json.dumps(entry, ensure_ascii=False).encode()) <= LARGEST
        assert entry["count"] == 9
        assert entry["by"]["login"] == "alice"
