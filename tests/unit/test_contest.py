"""core/contest: a field that others keep changing back is repaired more and more slowly."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import ObjectReconcile, current_moment
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.contest import (
    FIRST_DELAY,
    KEPT,
    LIMIT,
    LONGEST_DELAY,
    MOST_SUSPECTS,
    WINDOW,
    Contests,
    Moment,
    Suspect,
    without_held,
)
from pgrole_controller.core.diff import Change, Create, Rename, SetAttribute, SetComment
from pgrole_controller.core.errors import Reason, Refused, Waiting
from pgrole_controller.core.outcome import RECONCILED, of_contest, of_error
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordTask,
)
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Password, Role
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.postgres.apply import PartlyApplied

SERVER = 7
ME = Owner("cluster", "shop", "ns", "app", "uid")
RECORD = PasswordRecord(source="s/1/key", digest="sha256:a", connection="s/1 x ")
CLAIM = Claim("app", 20_000, SERVER, ME, applied="sha256:x", record=RECORD)
DAY = datetime(2026, 5, 6, tzinfo=UTC)
START = Moment(1_000.0, DAY)

CHANGES: dict[str, Change] = {
    "connectionLimit": SetAttribute("app", "connection_limit", 7),
    "superuser": SetAttribute("app", "superuser", False),
    "comment": SetComment("app", "declared"),
    "password": SetAttribute("app", "password", Password("sha256:b")),
    "name": Rename("stolen", "app"),
    "role": Create(Role("app")),
}

PASSWORD_TASK = PasswordTask(
    "shop", "app", DesiredPassword(), None, ObservedSecrets(), RECORD, Address("db", 1, "d", "require"), DAY, 4096
)


def at(seconds: float) -> Moment:
    return START.after(seconds)


def drift(*fields: str, oid: int | None = 20_000) -> Plan:
    return Plan(
        "app",
        changes=tuple(CHANGES[name] for name in fields),
        oid=oid,
        claim=CLAIM,
        owner=ME if fields else None,
        applied=CLAIM.applied,
        drift=fields,
        action=Action.CORRECTED if fields else Action.NOTHING,
    )


class Ring:
    """One object whose role something else keeps changing; `look` makes the allowed repairs."""

    def __init__(self) -> None:
        self.contests = Contests()
        self.generation = 1

    def plan(self, plan: Plan, seconds: float, sent: PasswordTask | None = None) -> Plan:
        return self.contests.hold("uid", self.generation, plan, sent, SERVER, at(seconds))

    def look(self, seconds: float, *fields: str) -> tuple[str, ...]:
        """Returns the fields that were repaired."""
        plan = self.plan(drift(*fields), seconds)
        if plan.changes:
            self.contests.repaired("uid", self.generation, plan.drift, at(seconds))
            self.plan(drift(*(name for name in fields if name not in plan.drift)), seconds)
        return plan.drift

    def field_contest(self, *fields: str) -> None:
        """Runs until the first repair is held back, at second `LIMIT`."""
        for second in range(LIMIT):
            assert self.look(second, *fields) == fields
        assert self.look(LIMIT, *fields) == ()

    def due(self, seconds: float) -> float:
        return seconds + (self.check(seconds) or 0.0)

    def check(self, seconds: float) -> float | None:
        contest = self.contests.get("uid")
        return None if contest is None else contest.next_check(at(seconds).seconds)

    @property
    def told(self) -> str:
        """With everything that may be exposed; empty when nothing is contested."""
        return self.contests.describe("uid", exposes_all=True) or ""


@pytest.fixture
def ring() -> Ring:
    return Ring()


def test_the_sixth_repair_within_a_minute_is_held_back(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    assert ring.told.startswith("connectionLimit: corrected 5 times within 4 s")


def test_the_same_number_of_repairs_over_more_than_a_minute_is_no_contest(ring: Ring) -> None:
    for turn in range(40):
        assert ring.look(turn * WINDOW / (LIMIT - 1), "connectionLimit") == ("connectionLimit",)
    assert not ring.told


def test_the_delay_of_a_repair_doubles_each_time_up_to_five_minutes(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    now, delays = float(LIMIT), []
    for _ in range(10):
        due = ring.due(now)
        assert ring.look(due - 0.5, "connectionLimit") == ()
        assert ring.look(due, "connectionLimit") == ("connectionLimit",)
        delays.append(due - now)
        now = due
        assert ring.look(now, "connectionLimit") == ()
    expected = [min(FIRST_DELAY * 2**turn, LONGEST_DELAY) for turn in range(10)]
    assert delays == pytest.approx(expected, abs=0.1)


def test_reconciles_in_between_change_neither_the_time_of_the_repair_nor_the_message(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    due, told = ring.due(LIMIT), ring.told
    for tenth in range(15):
        assert ring.look(LIMIT + tenth / 10, "connectionLimit") == ()
        assert ring.due(LIMIT + tenth / 10) == pytest.approx(due)
        assert ring.told == told


def test_the_message_stays_the_same_while_the_other_side_toggles_a_field_whose_repair_is_held_back(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    due, told = ring.due(LIMIT), ring.told
    for tenth in range(15):
        ring.look(LIMIT + tenth / 10, *(("connectionLimit",) if tenth % 2 else ()))
        assert ring.told == told
    ring.look(due + 1)
    assert ring.told == told
    assert ring.look(due + 2, "connectionLimit") == ("connectionLimit",)
    assert ring.told != told


def test_a_contest_ends_when_a_repair_lasts_for_a_minute(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    repaired = ring.due(LIMIT)
    assert ring.look(repaired, "connectionLimit") == ("connectionLimit",)
    assert "it now matches the spec" in ring.told
    ends = ring.due(repaired)
    assert ends == pytest.approx(repaired + WINDOW, abs=0.1)
    ring.look(ends - 1)
    assert ring.told
    ring.look(ends)
    assert not ring.told
    assert ring.check(ends) is None
    assert len(ring.contests) == 0


def test_a_contest_also_ends_when_the_opponent_restores_the_declared_value(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    ring.look(LIMIT + 1)
    ring.look(ring.due(LIMIT + 1))
    assert not ring.told


def test_a_contest_that_only_paused_continues_with_its_next_delay(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    repaired = ring.due(LIMIT)
    ring.look(repaired, "connectionLimit")
    again = repaired + WINDOW - 5
    assert ring.look(again, "connectionLimit") == ()
    assert ring.due(again) - again == pytest.approx(2 * FIRST_DELAY, abs=0.1)


def test_alternating_the_value_does_not_gain_more_repairs(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    repairs = 0
    for tenth in range(100):
        repairs += bool(ring.look(LIMIT + tenth / 10, *(() if tenth % 2 else ("connectionLimit",))))
    assert repairs <= 3


def test_another_field_of_the_same_role_is_repaired_at_once(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    assert ring.look(LIMIT, "connectionLimit", "superuser") == ("superuser",)
    assert ring.look(LIMIT, "superuser") == ("superuser",)


def test_changes_that_are_not_drift_are_never_held_back(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    changed = replace(drift("connectionLimit"), drift=(), action=Action.CHANGED)
    assert ring.plan(changed, LIMIT) == changed


def test_a_changed_spec_ends_the_contest(ring: Ring) -> None:
    ring.field_contest("connectionLimit")
    ring.generation = 2
    assert ring.look(LIMIT, "connectionLimit") == ("connectionLimit",)
    assert not ring.told


def test_only_recent_repairs_are_remembered() -> None:
    contests = Contests()
    for number in range(1_000):
        contests.repaired(f"uid-{number}", 1, ("login",), at(number))
    assert len(contests) <= KEPT + 1


def test_repairs_of_an_uncontested_field_are_remembered_for_only_a_minute(ring: Ring) -> None:
    ring.look(0, "connectionLimit")
    ring.look(1)
    assert len(ring.contests) == 1
    ring.look(WINDOW + 1)
    assert len(ring.contests) == 0


class TestHeldBackChanges:
    def test_nothing_is_written_when_everything_is_held_back(self) -> None:
        plan = without_held(drift("connectionLimit"), frozenset({"connectionLimit"}), SERVER)
        assert not plan.writes
        assert plan.action is Action.NOTHING

    def test_creation_of_a_dropped_role_is_held_back_with_all_its_fields(self) -> None:
        plan = without_held(drift("role", "comment", oid=None), frozenset({"role"}), SERVER)
        assert not plan.writes

    def test_uncontested_fields_of_a_role_that_others_recreated_are_repaired(self) -> None:
        gone = replace(CLAIM, role_oid=1)
        plan = without_held(
            replace(drift("superuser"), claim=gone, drift=("role", "superuser")), frozenset({"role"}), 7
        )
        assert plan.drift == ("role", "superuser")
        assert plan.owner == ME

    def test_a_contested_name_is_held_back_unless_another_field_is_repaired(self) -> None:
        assert not without_held(drift("name"), frozenset({"name"}), SERVER).writes
        plan = without_held(drift("name", "superuser"), frozenset({"name"}), SERVER)
        assert plan.changes == (CHANGES["name"], CHANGES["superuser"])
        assert plan.drift == ("name", "superuser")

    def test_a_rename_is_applied_while_another_field_is_contested(self) -> None:
        plan = without_held(drift("name", "comment"), frozenset({"comment"}), SERVER)
        assert plan.changes == (CHANGES["name"],)
        assert plan.drift == ("name",)

    def test_a_missing_claim_is_written_although_the_repair_is_held_back(self) -> None:
        lost = replace(drift("comment"), claim=None, action=Action.RECLAIMED)
        plan = without_held(lost, frozenset({"comment"}), SERVER)
        assert (plan.changes, plan.owner, plan.drift) == ((), ME, ())
        assert plan.action is Action.RECLAIMED

    def test_a_held_back_password_is_not_recorded_but_its_connection_secret_is(self) -> None:
        new = replace(RECORD, digest="sha256:b", connection="s/2 x ")
        plan = without_held(replace(drift("password"), record=new), frozenset({"password"}), SERVER)
        assert plan.record == replace(RECORD, connection="s/2 x ")
        plan = without_held(
            replace(drift("password"), record=replace(RECORD, digest="sha256:b")), frozenset({"password"}), SERVER
        )
        assert plan.record is None

    def test_a_new_password_is_set_while_another_field_is_contested(self) -> None:
        new = replace(RECORD, digest="sha256:b")
        plan = replace(drift("comment", "password"), drift=("comment",), record=new)
        left = without_held(plan, frozenset({"comment"}), SERVER)
        assert (left.changes, left.record, left.drift) == ((CHANGES["password"],), new, ())
        assert left.action is Action.CHANGED

    def test_a_rotation_stays_one_while_another_field_is_contested(self) -> None:
        new = replace(RECORD, digest="sha256:b")
        plan = replace(drift("comment", "password"), drift=("comment",), record=new, rotated=True)
        assert without_held(plan, frozenset({"comment"}), SERVER).action is Action.ROTATED
        plan = replace(drift("comment", "superuser", "password"), drift=("comment", "superuser"), rotated=True)
        assert without_held(plan, frozenset({"comment"}), SERVER).action is Action.CORRECTED


class TestContestedPasswords:
    """Whether a password differs is known only after a password task."""

    @pytest.fixture(autouse=True)
    def _field_contest(self, ring: Ring) -> None:
        for second in range(LIMIT):
            ring.contests.repaired("uid", 1, ("password",), at(second))
        assert ring.plan(replace(drift(), password_task=PASSWORD_TASK), LIMIT).password_task is not None
        assert not ring.plan(drift("password"), LIMIT, sent=PASSWORD_TASK).changes

    def test_a_password_task_that_would_find_nothing_new_is_not_run_again(self, ring: Ring) -> None:
        later = replace(PASSWORD_TASK, at=DAY.replace(hour=5))
        assert ring.plan(replace(drift(), password_task=later), LIMIT + 1).password_task is None
        assert "the controller corrects it again if it differs" in ring.told

    def test_a_rotation_is_not_held_back(self, ring: Ring) -> None:
        hourly = DesiredPassword(PasswordOrigin.GENERATED, rotate_every=timedelta(hours=1))
        sent = replace(PASSWORD_TASK, password=hourly, record=replace(RECORD, rotated_at=DAY))
        assert not ring.plan(drift("password"), LIMIT, sent=sent).changes
        for minutes, runs in ((59, False), (60, True)):
            later = replace(sent, at=DAY + timedelta(minutes=minutes))
            plan = ring.plan(replace(drift(), password_task=later), LIMIT + 1)
            assert plan.password_task == (later if runs else None)

    def test_a_different_password_task_is_run(self, ring: Ring) -> None:
        other = replace(PASSWORD_TASK, secrets=ObservedSecrets(stale=("old",)))
        assert ring.plan(replace(drift(), password_task=other), LIMIT + 1).password_task == other

    def test_a_password_task_is_run_when_the_repair_is_due_and_the_contest_continues(self, ring: Ring) -> None:
        now = float(LIMIT)
        for _ in range(8):
            due = ring.due(now)
            assert ring.plan(replace(drift(), password_task=PASSWORD_TASK), due).password_task is not None
            assert ring.plan(drift("password"), due, sent=PASSWORD_TASK).changes
            ring.contests.repaired("uid", 1, ("password",), at(due))
            now = due
            assert ring.plan(replace(drift(), password_task=PASSWORD_TASK), now).password_task is not None
            assert not ring.plan(drift("password"), now, sent=PASSWORD_TASK).changes
        assert ring.due(now) - now == pytest.approx(LONGEST_DELAY, abs=0.1)


class TestSuspects:
    def test_suspects_are_looked_up_at_most_once_a_second_and_only_during_a_contest(self, ring: Ring) -> None:
        assert not ring.contests.needs_suspects("uid", at(0))
        ring.field_contest("comment")
        assert ring.contests.needs_suspects("uid", at(LIMIT))
        ring.contests.name_suspects("uid", [], at(LIMIT))
        assert not ring.contests.needs_suspects("uid", at(LIMIT + 0.5))
        assert ring.contests.needs_suspects("uid", at(LIMIT + 1.5))

    def test_suspects_are_named_with_their_own_texts_quoted_escaped_and_cut(self, ring: Ring) -> None:
        ring.field_contest("comment")
        ring.contests.name_suspects(
            "uid", [Suspect("eve\n\x1b[2J\u202e", 'a" (b\\' + "x" * 900, "10.0.0.7")], at(LIMIT)
        )
        told = ring.told
        assert told.isprintable()
        assert len(told) < 400
        assert 'user "eve??[2J?"' in told
        assert '"10.0.0.7"' in told

    def test_application_and_address_are_shown_only_where_everything_is_exposed(self, ring: Ring) -> None:
        ring.field_contest("comment")
        suspects = [Suspect("eve", "her tool", "10.0.0.7"), Suspect("eve", "psql"), Suspect("mallory", "psql")]
        ring.contests.name_suspects("uid", suspects, at(LIMIT))
        assert 'user "eve", application "her tool", from "10.0.0.7" and user "eve", application "psql"' in ring.told
        said = ring.contests.describe("uid", exposes_all=False) or ""
        assert said.endswith('a statement about this role: user "eve" and user "mallory"')

    def test_suspects_stay_named_and_are_at_most_three(self, ring: Ring) -> None:
        ring.field_contest("comment")
        for number in range(9):
            ring.contests.name_suspects("uid", [Suspect(f"user-{number}")], at(LIMIT))
        assert ring.told.count("user-") == MOST_SUSPECTS
        assert not ring.contests.needs_suspects("uid", at(LIMIT + 9))


def test_a_contested_object_is_neither_ready_nor_retried_early() -> None:
    outcome = of_contest("comment: set back", RECONCILED)
    assert not outcome.ready
    assert not outcome.retried
    assert outcome.reason == "Contested"


async def test_a_repair_beside_a_missing_privilege_counts_and_is_announced() -> None:
    desired, contests = Desired(ME, Role("app")), Contests()
    attempt = ObjectReconcile(Target(Key("shop", "app"), None, desired), contests)
    server = Server(SERVER, frozenset(), Address("db", 1, "d", "require"))
    attempt.observe(Observed(), drift("superuser", "connectionLimit"), server)
    lacking = Refused(Reason.DATABASE_ERROR, "lacks a privilege (superuser)")
    partly = PartlyApplied(lacking.reason, lacking.message, drift("connectionLimit"))
    attempt.end(drift("superuser", "connectionLimit"), partly)
    assert attempt.is_open, "status needs the claim as it is now"
    attempt.end(drift("superuser"), lacking)
    result = attempt.conclude()
    assert (result.action, result.fields, result.corrected) == (Action.CORRECTED, *2 * [("connectionLimit",)])
    assert result.outcome == of_error(lacking)
    contest = contests.get("")
    assert contest is not None
    assert contest.field_contests.keys() == {"connectionLimit"}


async def test_a_rotation_is_known_beside_drift_that_the_same_transaction_corrected() -> None:
    server = Server(SERVER, frozenset(), Address("db", 1, "d", "require"))
    attempt = ObjectReconcile(Target(Key("shop", "app"), None, Desired(ME, Role("app"))), Contests())
    both = replace(drift("connectionLimit", "password"), drift=("connectionLimit",), rotated=True)
    attempt.observe(Observed(), both, server)
    assert not attempt.conclude().rotated, "nothing is applied yet"
    attempt.end(replace(both, changes=(CHANGES["connectionLimit"],)), None)
    assert not attempt.conclude().rotated, "the password was left out"
    attempt.end(both, None)
    result = attempt.conclude()
    assert (result.action, result.corrected[-1:], result.rotated) == (Action.CORRECTED, ("connectionLimit",), True)
    attempt.end(drift("superuser"), Refused(Reason.DATABASE_ERROR, "lacks a privilege (superuser)"))
    assert attempt.conclude().rotated


async def test_the_message_of_a_contest_names_privileges_that_are_not_as_declared() -> None:
    grantee = Grantee(Key("shop", "app"), "", 1, "app", 20_000, {"orders": DatabasePrivileges("orders")})
    waiting = Waiting(Reason.PRIVILEGE_PENDING, 'database "orders": waiting for table app.later')
    desired, contests = Desired(ME, Role("app"), privileges=grantee.declared), Contests()
    for _ in range(LIMIT):
        contests.repaired("", 0, ("comment",), current_moment())
    attempt = ObjectReconcile(Target(Key("shop", "app"), None, desired), contests)
    server = Server(SERVER, frozenset(), Address("db", 1, "d", "require"))
    attempt.observe(Observed(), drift("comment"), server)
    attempt.note_privileges(GrantedPrivileges(grantee, problems={"orders": waiting}))
    outcome = attempt.conclude().outcome
    assert outcome is not None
    assert outcome.reason is Reason.CONTESTED
    assert outcome.message.endswith(f". Apart from that: {waiting.message}")


@pytest.mark.parametrize("exposes_all", [False, True])
async def test_the_message_of_a_contest_shows_the_address_only_where_everything_is_exposed(exposes_all: bool) -> None:
    contests = Contests()
    for _ in range(LIMIT):
        contests.repaired("", 0, ("comment",), current_moment())
    target = Target(Key("shop", "app"), None, Desired(ME, Role("app")))
    attempt = ObjectReconcile(target, contests, exposes_all=exposes_all)
    server = Server(SERVER, frozenset(), Address("db", 1, "d", "require"))
    attempt.observe(Observed(), drift("comment"), server)
    attempt.name_suspects([Suspect("eve", "her tool", "10.0.0.7")], current_moment())
    outcome = attempt.conclude().outcome
    assert outcome is not None
    assert 'user "eve"' in outcome.message
    assert ("her tool" in outcome.message) is ("10.0.0.7" in outcome.message) is exposes_all
