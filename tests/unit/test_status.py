"""core/outcome and core/status: the result of a reconcile, and how the object's status describes it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.drift_record import MOST, rfc3339
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.outcome import PROGRESSING, RECONCILED, Outcome, Phase, of_error, of_read_back
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, PrivilegeDrift, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.role_drift import FoundCause, RoleDrift
from pgrole_controller.core.status import StatusDetails, build_status

NOBODY = {"proof": "None"}
NOW = datetime(2026, 5, 6, 7, 8, 9, 999_999, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
OWNER = Owner("cluster", "shop", "ns", "app", "uid")
CLAIM = Claim(
    "app", 20_000, 7, OWNER, applied="sha256:x", drift_count=2, last_drift_at=NOW, last_drift_fields=("login",)
)


def said(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def build(
    outcome: Outcome, previous: dict[str, Any] | None = None, *, now: datetime = NOW, **details: Any
) -> dict[str, Any]:
    return build_status(previous or {}, outcome, StatusDetails(**details), "default", 3, now)


def result_of(drift_count: int) -> PrivilegeResult:
    return PrivilegeResult(Key("shop", "app"), "uid", "orders", "", drift_count=drift_count)


def answered(result: PrivilegeResult) -> GrantedPrivileges:
    return GrantedPrivileges(Grantee(result.key, result.uid, 1, "app", 20_000, {}), {result.database: result})


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RECONCILED, {"Ready": ("True", "Reconciled")}),
        (PROGRESSING, {"Ready": ("False", "Progressing"), "Reconciling": ("True", "Progressing")}),
        (
            of_error(Refused(Reason.CONFLICT, "x")),
            {"Ready": ("False", "Conflict"), "Stalled": ("True", "Conflict")},
        ),
        (
            of_error(Waiting(Reason.DROP_BLOCKED, "x")),
            {"Ready": ("False", "DropBlocked"), "Reconciling": ("True", "DropBlocked")},
        ),
        (of_error(Refused(Reason.SUSPENDED, "x")), {"Ready": ("False", "Suspended")}),
        (
            of_read_back(Plan("app", reported=("login",))),
            {"Ready": ("False", "DriftReported"), "DriftDetected": ("True", "DriftReported")},
        ),
    ],
)
def test_conditions_other_than_ready_exist_only_while_they_are_true(
    outcome: Outcome, expected: dict[str, tuple[str, str]]
) -> None:
    assert said(build(outcome)) == expected


def test_reported_drift_does_not_hide_what_else_keeps_the_object_from_being_ready() -> None:
    pending = Waiting(Reason.DATABASE_ERROR, "a database does not exist")
    outcome = of_read_back(Plan("app", reported=("login",), pending=(pending,)))
    assert outcome.reason is Reason.DRIFT_REPORTED
    assert outcome.message.endswith("login; a database does not exist")
    assert outcome.retried
    assert set(said(build(outcome))) == {"Ready", "Reconciling", "DriftDetected"}


def test_everything_that_is_pending_is_reported_and_what_someone_has_to_resolve_comes_first() -> None:
    group = Waiting(Reason.MEMBERSHIP_PENDING, "a role does not exist")
    database = Waiting(Reason.DATABASE_ERROR, "a database does not exist")
    template = Refused(Reason.INVALID_SPEC, "a template has a typo")
    outcome = of_read_back(Plan("app", pending=(group, database)))
    assert (outcome.phase, outcome.reason) == (Phase.WORKING, Reason.MEMBERSHIP_PENDING)
    assert outcome.message == "a role does not exist; a database does not exist"
    outcome = of_read_back(Plan("app", pending=(group, database, template)))
    assert (outcome.phase, outcome.reason) == (Phase.STALLED, Reason.INVALID_SPEC)
    assert outcome.message == "a template has a typo; a role does not exist; a database does not exist"
    assert outcome.retried, "nothing announces a database that is created"
    assert not of_read_back(Plan("app", pending=(template,))).retried


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = build(RECONCILED)
    same = build(RECONCILED, first, now=LATER)
    assert same == first
    other = build(of_error(Transient(Reason.SERVER_NOT_READY, "away")), same, now=LATER)
    again = build(of_error(Transient(Reason.SERVER_NOT_READY, "still away")), other, now=LATER + timedelta(hours=1))
    assert other["conditions"][0]["lastTransitionTime"] == "2026-05-06T08:08:09Z"
    assert again["conditions"][0]["lastTransitionTime"] == "2026-05-06T08:08:09Z"
    assert again["conditions"][0]["message"] == "still away"


def test_the_message_of_a_ready_object_stays_until_the_spec_changes() -> None:
    adopted = replace(RECONCILED, message="the role was adopted")
    (first,) = build(adopted)["conditions"]
    (same,) = build(RECONCILED, {"conditions": [first]}, now=LATER)["conditions"]
    assert same == first
    (changed,) = build(RECONCILED, {"conditions": [first | {"observedGeneration": 2}]}, now=LATER)["conditions"]
    assert changed["message"] == RECONCILED.message


def test_a_year_that_someone_wrote_into_a_secret_has_four_digits() -> None:
    """Otherwise the API server refuses the status, and no condition is ever seen."""
    status = build(RECONCILED, claim=CLAIM, next_rotation=datetime(500, 1, 2, tzinfo=UTC))
    assert status["nextRotation"] == "0500-01-02T00:00:00Z"


def test_the_status_of_the_role_comes_from_the_claim() -> None:
    status = build(RECONCILED, claim=CLAIM)
    assert status["role"] == {"name": "app", "oid": 20_000, "applied": "sha256:x"}
    assert status["server"] == {"name": "default", "systemIdentifier": "7"}
    assert status["driftCount"] == 2
    last = {"time": "2026-05-06T07:08:09Z", "fields": ["login"], "corrected": True, "by": NOBODY}
    assert status["lastDrift"] == last


def test_without_a_read_of_the_database_the_status_of_the_role_is_kept() -> None:
    before = build(RECONCILED, claim=CLAIM)
    after = build(of_error(Transient(Reason.SERVER_NOT_READY, "away")), before)
    for name in ("role", "server", "driftCount", "lastDrift"):
        assert after[name] == before[name]


def test_a_rewritten_claim_does_not_reset_the_drift_count() -> None:
    before = build(RECONCILED, claim=CLAIM)
    assert build(RECONCILED, before, claim=replace(CLAIM, drift_count=0))["driftCount"] == 2


def test_a_drift_after_the_claim_was_lost_is_counted() -> None:
    before = build(RECONCILED, claim=CLAIM)
    lost = replace(CLAIM, drift_count=0, last_drift_at=None, last_drift_fields=())
    restored = build(RECONCILED, before, claim=lost)
    assert restored["driftCount"] == 2
    drifted = replace(lost, drift_count=1, last_drift_at=LATER, last_drift_fields=("createdb",))
    counted = build(RECONCILED, restored, claim=drifted)
    assert counted["driftCount"] == 3
    assert build(RECONCILED, counted, claim=drifted)["driftCount"] == 3
    largest = {**restored, "driftCount": 2**63 - 1}  # the API server accepts no more
    assert build(RECONCILED, largest, claim=drifted)["driftCount"] == 2**63 - 1


@pytest.mark.parametrize("lost", [False, True], ids=["counts are remembered", "a count was lost"])
def test_drifts_of_the_role_and_in_databases_are_counted_once_each(lost: bool) -> None:
    drift = PrivilegeDrift(NOW + timedelta(seconds=9), ("x",), 1, corrected=True)
    by_another = replace(drift, time=NOW + timedelta(seconds=8), by=DriftAuthor(Evidence.SESSION, "bob"))
    count = 1 if lost else 4
    result = result_of(3)
    before = build(RECONCILED, claim=CLAIM, privileges=answered(result))
    assert before["driftCount"] == 5
    drifted = replace(CLAIM, drift_count=3, last_drift_at=LATER)
    now = answered(replace(result, drift_count=count, last_drifts=(by_another, drift)))
    counted = build(RECONCILED, before, claim=drifted, privileges=now)
    assert counted["driftCount"] == 7
    # a restarted controller learns them again, one after the other
    for known in (None, answered(replace(result, drift_count=0)), now):
        counted = build(RECONCILED, counted, claim=drifted, privileges=known)
        assert counted["driftCount"] == 7


def test_where_status_proved_the_claim_its_count_goes_on_and_includes_those_of_the_databases() -> None:
    before = build(RECONCILED, claim=CLAIM, privileges=answered(result_of(3)))
    proven = replace(CLAIM, drift_count=0, last_drift_at=None, counted=5)
    assert build(RECONCILED, before, claim=proven, privileges=answered(result_of(3)))["driftCount"] == 5
    at_once = replace(proven, drift_count=1, last_drift_at=NOW)  # within the second of the last one
    assert build(RECONCILED, before, claim=at_once, privileges=answered(result_of(3)))["driftCount"] == 6


def test_a_definition_without_history_lets_no_drift_count_twice() -> None:
    before = build(RECONCILED, claim=CLAIM)
    del before["driftHistory"]
    for _ in range(2):
        later = build(RECONCILED, before, claim=replace(CLAIM, last_drift_at=LATER))
        assert later["driftCount"] == 2
        del later["driftHistory"]
        before = later


def test_reported_drift_keeps_the_time_of_its_first_report() -> None:
    outcome = of_read_back(Plan("app", reported=("createdb",)))
    first = build(outcome, claim=CLAIM, reported=("createdb",))
    assert first["lastDrift"] == {
        "time": "2026-05-06T07:08:09Z",
        "fields": ["createdb"],
        "corrected": False,
        "by": NOBODY,
    }
    assert build(outcome, first, now=LATER, claim=CLAIM, reported=("createdb",))["lastDrift"] == first["lastDrift"]
    wider = build(outcome, first, now=LATER, claim=CLAIM, reported=("createdb", "login"))
    assert wider["lastDrift"]["time"] == "2026-05-06T08:08:09Z"


def test_reported_drift_that_was_undone_in_the_database_stays_the_last_drift() -> None:
    outcome = of_read_back(Plan("app", reported=("createdb",)))
    reported = build(outcome, build(RECONCILED, claim=CLAIM), now=LATER, claim=CLAIM, reported=("createdb",))
    undone = build(RECONCILED, reported, now=LATER, claim=CLAIM)
    assert undone["lastDrift"] == reported["lastDrift"]
    corrected = replace(CLAIM, last_drift_at=LATER + timedelta(minutes=1))
    assert build(RECONCILED, undone, claim=corrected)["lastDrift"]["corrected"]


def test_drift_that_is_reported_again_after_it_was_undone_is_another_drift() -> None:
    outcome = of_read_back(Plan("app", reported=("createdb",)))
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())
    by_alice = FoundCause(replace(DRIFT, fields=("createdb",), corrected=False), BY)
    first = build(outcome, claim=claim, reported=("createdb",), cause=by_alice)
    undone = build(RECONCILED, first, claim=claim)
    again = build(outcome, undone, claim=claim, reported=("createdb",), observed_at=LATER)
    assert again["lastDrift"] == {
        "time": "2026-05-06T08:08:09Z",
        "fields": ["createdb"],
        "corrected": False,
        "by": NOBODY,
    }
    assert [(one["time"][11:13], "by" in one) for one in again["driftHistory"]] == [("08", False), ("07", True)]


def test_another_reported_drift_of_the_same_fields_has_its_own_time_and_author() -> None:
    outcome = of_read_back(Plan("app", reported=("createdb",)))
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())
    by_alice = FoundCause(replace(DRIFT, fields=("createdb",), corrected=False), BY)
    first = build(outcome, claim=claim, reported=("createdb",), cause=by_alice, reported_at=NOW)
    assert first["lastDrift"]["by"]["login"] == "alice"
    same = build(outcome, first, now=LATER, claim=claim, reported=("createdb",), reported_at=NOW)
    assert same["lastDrift"] == first["lastDrift"]
    other = build(outcome, first, now=LATER, claim=claim, reported=("createdb",), reported_at=LATER)
    assert (other["lastDrift"]["time"], other["lastDrift"]["by"]) == ("2026-05-06T08:08:09Z", NOBODY)
    assert [(one["time"][11:13], "by" in one) for one in other["driftHistory"]] == [("08", False), ("07", True)]


def test_a_long_message_is_cut() -> None:
    status = build(of_error(Refused(Reason.INVALID_SPEC, "x" * 10_000)))
    assert len(status["conditions"][0]["message"]) == 2048


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (Refused(Reason.CONFLICT, ""), Phase.STALLED),
        (Waiting(Reason.DROP_BLOCKED, ""), Phase.WORKING),
        (Transient(Reason.DATABASE_ERROR, ""), Phase.WORKING),
        (Refused(Reason.SUSPENDED, ""), Phase.PAUSED),
    ],
)
def test_each_kind_of_error_has_its_phase(error: PgRoleError, phase: Phase) -> None:
    assert of_error(error).phase is phase


DRIFT = RoleDrift("app", 20_000, "uid", ("login",), True, NOW)
BY = DriftAuthor(Evidence.SESSION, "alice", application="psql", address="10.0.0.1", statement="never of role DDL")


def test_the_author_of_a_drift_is_shown_once_found_and_stays() -> None:
    before = build(RECONCILED, claim=CLAIM)
    assert before["lastDrift"]["by"] == NOBODY
    found = build(RECONCILED, before, claim=CLAIM, cause=FoundCause(DRIFT, BY))
    assert found["lastDrift"]["by"] == {"login": "alice", "proof": "Session"}
    assert [entry["by"] for entry in found["driftHistory"]] == [{"login": "alice", "proof": "Session"}]
    assert build(RECONCILED, found, claim=CLAIM) == found  # after a restart nothing else is known
    other = replace(CLAIM, last_drift_at=LATER)
    later = build(RECONCILED, found, claim=other, cause=FoundCause(DRIFT, BY))
    assert later["lastDrift"]["by"] == NOBODY
    assert ["by" in entry for entry in later["driftHistory"]] == [False, True]


def test_everything_about_the_author_is_shown_only_where_the_server_exposes_it() -> None:
    status = build(RECONCILED, claim=CLAIM, cause=FoundCause(DRIFT, BY), exposes_all=True)
    assert status["lastDrift"]["by"] == {
        "login": "alice",
        "application": "psql",
        "address": "10.0.0.1",
        "statement": "never of role DDL",
        "proof": "Session",
    }
    assert build(RECONCILED, status, claim=CLAIM) == status


def test_what_the_server_no_longer_exposes_disappears_from_every_status() -> None:
    status = build(RECONCILED, claim=CLAIM, cause=FoundCause(DRIFT, BY), exposes_all=True)
    denied = of_error(Refused(Reason.NOT_ALLOWED, "the policy says no"))
    for outcome, claim in (RECONCILED, CLAIM), (RECONCILED, replace(CLAIM, last_drift_at=None)), (denied, None):
        hidden = build(outcome, status, claim=claim, exposes_all=False)["lastDrift"]
        assert hidden == {**status["lastDrift"], "by": {"login": "alice", "proof": "Session"}}
        assert build(outcome, status, claim=claim)["lastDrift"] == status["lastDrift"]  # it is unknown


def test_the_author_of_a_reported_drift_is_shown_with_the_time_of_its_first_report() -> None:
    plan = Plan("app", reported=("login",))
    drift = replace(DRIFT, corrected=False)
    first = build(of_read_back(plan), reported=("login",))
    found = build(of_read_back(plan), first, now=LATER, reported=("login",), cause=FoundCause(drift, BY))
    assert found["lastDrift"]["time"] == first["lastDrift"]["time"]
    assert found["lastDrift"]["by"]["login"] == "alice"
    assert len(found["driftHistory"]) == 1
    again = build(of_read_back(plan), found, now=LATER, reported=("login",))
    assert again["lastDrift"] == found["lastDrift"]


def test_the_history_of_privileges_survives_a_restart() -> None:
    drift = PrivilegeDrift(NOW, ("DELETE on table app.orders was granted",), 1, corrected=True, by=BY)
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 20_000, {})
    result = PrivilegeResult(grantee.key, "uid", "orders", "d", last_drifts=(drift,))
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())
    before = build(RECONCILED, claim=claim, privileges=GrantedPrivileges(grantee, {"orders": result}))
    assert [entry["database"] for entry in before["driftHistory"]] == ["orders"]
    unknown = GrantedPrivileges(grantee, {"orders": replace(result, last_drifts=())})
    after = build(RECONCILED, before, claim=claim, privileges=unknown)
    assert (after["driftHistory"], after["lastDrift"]) == (before["driftHistory"], before["lastDrift"])


def test_the_history_has_the_drifts_of_all_rounds_since_the_last_status() -> None:
    drifts = [
        PrivilegeDrift(NOW + timedelta(seconds=each), (f"{each} was granted",), 1, corrected=True, by=BY)
        for each in range(3)
    ]
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 20_000, {})
    result = PrivilegeResult(
        grantee.key, "uid", "orders", "d", last_drifts=(drifts[2],), earlier_drifts=tuple(drifts[:2])
    )
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())
    built = build(RECONCILED, claim=claim, privileges=GrantedPrivileges(grantee, {"orders": result}))
    assert [entry["details"] for entry in built["driftHistory"]] == [[f"{each} was granted"] for each in (2, 1, 0)]
    assert built["lastDrift"]["details"] == ["2 was granted"]
    again = build(RECONCILED, built, claim=claim, privileges=GrantedPrivileges(grantee, {"orders": result}))
    assert again["driftHistory"] == built["driftHistory"]


def test_the_last_drift_of_privileges_loses_nothing_in_a_restart() -> None:
    words = tuple(f"DELETE on table {'s' * 60}.{'t' * 60}{number} was granted" for number in range(8))
    by = replace(BY, role="owner", time=NOW)
    drift = PrivilegeDrift(NOW, words, 8, corrected=True, by=by)
    restored = PrivilegeDrift(NOW, tuple(one[:120] for one in words[:5]), 8, True, DriftAuthor(by.proof, by.login))
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 20_000, {})
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())

    def privileges(one: PrivilegeDrift) -> GrantedPrivileges:
        result = PrivilegeResult(grantee.key, "uid", "orders", "d", last_drifts=(one,))
        return GrantedPrivileges(grantee, {"orders": result})

    before = build(RECONCILED, claim=claim, privileges=privileges(drift), exposes_all=True)
    assert len(before["lastDrift"]["details"]) == 8
    assert build(RECONCILED, before, claim=claim, privileges=privileges(restored), exposes_all=True) == before
    hidden = build(RECONCILED, before, claim=claim, privileges=privileges(restored), exposes_all=False)
    assert hidden["lastDrift"]["by"].keys() == {"login", "role", "time", "proof"}


def test_drift_of_privileges_that_is_only_reported_keeps_its_time_while_it_stands() -> None:
    reported = Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, "x")
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 20_000, {})
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())

    def privileges(time: datetime, by: DriftAuthor = DriftAuthor()) -> GrantedPrivileges:  # noqa: B008 -- frozen
        drift = PrivilegeDrift(time, ("DELETE on table app.orders was granted",), 1, corrected=False, by=by)
        return GrantedPrivileges(
            grantee, {"orders": PrivilegeResult(grantee.key, "uid", "orders", "d", last_drifts=(drift,))}
        )

    first = build(reported, claim=claim, privileges=privileges(NOW))
    assert build(reported, first, claim=claim, privileges=privileges(LATER)) == first, "a restart observes it again"
    known = build(reported, first, claim=claim, privileges=privileges(LATER, replace(BY, time=LATER)))
    undone = build(RECONCILED, first, claim=claim)
    for again in (known, build(reported, undone, claim=claim, privileges=privileges(LATER))):
        assert [entry["time"][11:13] for entry in again["driftHistory"]] == ["08", "07"]


@pytest.mark.parametrize("time", [None, 7, "", "soon", "2026-05-06T07:08:60Z", "2026-05-06t07:08:09z", "2026-05-06"])
def test_a_status_with_an_unreadable_time_is_written_anew(time: object) -> None:
    reported = Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, "x")
    grantee = Grantee(Key("shop", "app"), "uid", 1, "app", 20_000, {})
    claim = replace(CLAIM, last_drift_at=None, last_drift_fields=())
    drift = PrivilegeDrift(LATER, ("DELETE on table app.orders was granted",), 1, corrected=False)
    result = PrivilegeResult(grantee.key, "uid", "orders", "d", last_drifts=(drift,))
    privileges = GrantedPrivileges(grantee, {"orders": result})
    for details in ({"reported": ("createdb",)}, {"privileges": privileges}):
        first = build(reported, now=LATER, claim=claim, **details)
        wrong = {
            **first,
            "lastDrift": {**first["lastDrift"], "time": time},
            "driftHistory": [{**one, "time": time} for one in first["driftHistory"]],
        }
        again = build(reported, wrong, now=LATER, claim=claim, **details)
        assert again["lastDrift"] == first["lastDrift"]
        assert first["driftHistory"][0] in again["driftHistory"]


def test_drifts_dated_in_the_future_do_not_hide_later_ones_once_the_clock_is_set_back() -> None:
    year = timedelta(days=365)

    def privileges(time: datetime, drift_count: int) -> GrantedPrivileges:
        drift = PrivilegeDrift(time, ("DELETE on table app.orders was granted",), 1, corrected=True)
        return answered(replace(result_of(drift_count), last_drifts=(drift,)))

    claim = replace(CLAIM, last_drift_at=NOW - year)
    status = build(RECONCILED, claim=claim)
    for number in range(MOST):
        ahead = NOW + year + timedelta(hours=number)
        status = build(RECONCILED, status, claim=claim, privileges=privileges(ahead, number + 1))
    assert status["driftCount"] == CLAIM.drift_count + MOST
    ahead_claim = replace(CLAIM, drift_count=3, last_drift_at=NOW + year)
    for number in range(MOST + 2):
        at = LATER + timedelta(minutes=number)
        for _ in range(2):
            found = privileges(at, MOST + 1 + number)
            status = build(RECONCILED, status, now=at, claim=ahead_claim, privileges=found)
            assert status["lastDrift"]["time"] == status["driftHistory"][0]["time"] == f"{at:%Y-%m-%dT%H:%M:%SZ}"
            assert status["driftCount"] == 3 + MOST + 1 + number
    assert {entry["time"][:10] for entry in status["driftHistory"]} == {"2026-05-06"}


@pytest.mark.parametrize("back", [timedelta(minutes=10), timedelta(days=365)])
def test_the_newest_drifts_are_shown_while_the_clock_of_the_server_is_set_back(back: timedelta) -> None:
    status: dict[str, Any] = {}
    for number in range(2 * MOST):
        at = NOW + timedelta(seconds=number) - (back if number >= MOST else timedelta())
        drift = PrivilegeDrift(at, ("DELETE on table app.orders was granted",), 1, corrected=True)
        found = answered(replace(result_of(number + 1), last_drifts=(drift,)))
        status = build(RECONCILED, status, claim=CLAIM, privileges=found, observed_at=at)
        assert status["lastDrift"]["time"] == status["driftHistory"][0]["time"] == rfc3339(at)
