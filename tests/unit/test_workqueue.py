"""The queue's rules; invariants 1 (one reconcile at a time, exactly one more) and 9 (no work at rest)."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pgrole_controller.core.next_attempt import Done, NextAttempt, Retry, RetryAfter
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.workqueue import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    PATIENCE,
    PLACES_PER_TURN,
    Backlog,
    Schedule,
    WorkItem,
)

A, B, C = (Key("shop", name) for name in "abc")
MANY = 1_000


def without_jitter() -> Schedule:
    return Schedule(lambda: 0.0)


def change(key: Key, reason: RequestReason = RequestReason.OBJECT) -> Request:
    return Request(key, reason, Rank.CHANGE)


def drift(key: Key) -> Request:
    return Request(key, RequestReason.NOTIFY, Rank.DRIFT)


def resync(key: Key) -> Request:
    return Request(key, RequestReason.RESYNC, Rank.RESYNC)


def dependency(key: Key) -> Request:
    return Request(key, RequestReason.SECRET, Rank.DEPENDENCY)


def keys_of(items: tuple[WorkItem, ...]) -> list[Key]:
    return [item.key for item in items]


def fail(schedule: Schedule, key: Key, now: float, times: int = 1) -> float:
    """Fails the reconciles of a key as they come; returns when the next is due."""
    for _ in range(times):
        assert keys_of(schedule.take("s", now, MANY)) == [key]
        schedule.done(key, now, Retry())
        due = schedule.next_at("s")
        assert due is not None
        now = due
    return now


def test_a_request_leads_to_one_reconcile_with_its_reason() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A, RequestReason.NOTIFY), 1.0)
    assert schedule.take("s", 3.0, MANY) == (WorkItem(A, RequestReason.NOTIFY, Rank.CHANGE, 2.0, 0),)
    assert schedule.take("s", 3.0, MANY) == ()
    assert schedule.done(A, 4.0, Done()) is None
    assert schedule.next_at("s") is None


def test_requests_for_a_waiting_key_lead_to_one_reconcile_with_the_best_rank_and_its_reason() -> None:
    schedule = without_jitter()
    for request in (resync(A), change(A, RequestReason.NOTIFY), change(A, RequestReason.OBJECT), dependency(A)):
        schedule.add("s", request, 1.0)
    [item] = schedule.take("s", 1.0, MANY)
    assert (item.rank, item.reason) == (Rank.CHANGE, RequestReason.NOTIFY)


def test_a_ready_key_moves_up_when_its_rank_improves() -> None:
    schedule = without_jitter()
    for key in (A, B, C):
        schedule.add("s", resync(key), 1.0)
    assert schedule.backlog("s", 1.0).depth == 3
    schedule.add("s", change(C), 1.5)
    assert keys_of(schedule.take("s", 2.0, MANY)) == [C, A, B]


def test_requests_during_a_reconcile_lead_to_exactly_one_more_after_it() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.take("s", 1.0, MANY)
    for _ in range(3):
        schedule.add("s", change(A, RequestReason.NOTIFY), 2.0)
    assert schedule.take("s", 3.0, MANY) == ()
    assert schedule.next_at("s") is None
    assert schedule.done(A, 4.0, Done()) == "s"
    assert schedule.take("s", 4.0, MANY) == (WorkItem(A, RequestReason.NOTIFY, Rank.CHANGE, 1.0, 0),)
    assert schedule.done(A, 5.0, Done()) is None


def test_a_reconcile_cannot_end_twice_or_before_it_began() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    with pytest.raises(LookupError, match="shop/a"):
        schedule.done(A, 1.0, Done())
    schedule.take("s", 1.0, MANY)
    schedule.done(A, 1.0, Done())
    with pytest.raises(LookupError, match="no reconcile of shop/a is in progress"):
        schedule.done(A, 1.0, Done())


def test_the_earliest_of_several_due_times_counts() -> None:
    schedule = without_jitter()
    for at in (30.0, 10.0, 20.0):
        schedule.add("s", change(A), at)
    assert schedule.next_at("s") == 10.0
    assert schedule.take("s", 9.9, MANY) == ()
    assert keys_of(schedule.take("s", 10.0, MANY)) == [A]
    schedule.done(A, 10.0, Done())
    assert schedule.take("s", 99.0, MANY) == ()


def test_a_request_now_beats_a_delayed_one() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 100.0)
    schedule.add("s", resync(A), 1.0)
    [item] = schedule.take("s", 1.0, MANY)
    assert item.rank is Rank.CHANGE


def test_better_ranks_come_first_and_equal_ranks_in_order_of_arrival() -> None:
    schedule = without_jitter()
    keys = [Key("shop", str(number)) for number in range(6)]
    for key, request in zip(keys, [resync, dependency, change, change, dependency, resync], strict=True):
        schedule.add("s", request(key), 1.0)
    assert keys_of(schedule.take("s", 1.0, 4)) == [keys[2], keys[3], keys[1], keys[4]]
    assert keys_of(schedule.take("s", 1.0, 4)) == [keys[0], keys[5]]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_resync_is_reconciled_however_many_changes_come(limit: int) -> None:
    schedule = without_jitter()
    schedule.add("s", resync(A), 0.0)
    now, taken, after_patience = 0.0, 0, 0
    while True:
        for _ in range(limit):
            schedule.add("s", change(Key("busy", str(taken))), now)
            taken += 1
        keys = keys_of(schedule.take("s", now, limit))
        if A in keys:
            break
        after_patience += len(keys) if now > PATIENCE else 0
        assert after_patience < PLACES_PER_TURN
        now += 1.0
    assert now > PATIENCE


def test_changes_keep_their_places_while_ten_thousand_others_have_waited_too_long() -> None:
    schedule = without_jitter()
    for number in range(10_000):
        schedule.add("s", dependency(Key("old", str(number))), 0.0)
    schedule.add("s", change(A), 60.0)
    assert A in keys_of(schedule.take("s", 60.0, 2))


def test_drifts_and_changes_alternate_while_both_wait() -> None:
    schedule = without_jitter()
    changes = [Key("new", str(number)) for number in range(1_000)]
    drifts = [Key("drifted", str(number)) for number in range(3)]
    for key in changes:
        schedule.add("s", change(key), 0.0)
    for key in drifts:
        schedule.add("s", drift(key), 1.0)
    taken = keys_of(schedule.take("s", 1.0, 8))
    assert taken == [drifts[0], changes[0], drifts[1], changes[1], drifts[2], changes[2], changes[3], changes[4]]


def test_a_drift_is_in_the_next_batch_however_small_and_however_many_changes_wait() -> None:
    schedule = without_jitter()
    for number in range(1_000):
        schedule.add("s", change(Key("new", str(number))), 0.0)
    schedule.take("s", 1.0, 7)
    schedule.add("s", drift(A), 1.0)
    assert keys_of(schedule.take("s", 1.0, 1)) == [A]


def test_a_change_is_reconciled_soon_however_many_drifts_come() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    for number in range(1_000):
        schedule.add("s", drift(Key("drifted", str(number))), 0.0)
    assert A in keys_of(schedule.take("s", 0.0, 2))


def test_failures_back_off_from_two_seconds_doubling_to_five_minutes() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    delays, now = [], 0.0
    for _ in range(10):
        due = fail(schedule, A, now)
        delays.append(due - now)
        now = due
    assert delays == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]


def test_failures_are_reset_only_for_the_named_server() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    now = fail(schedule, A, 0.0, times=6)
    schedule.reset_failures("another")
    [item] = schedule.take("s", now, MANY)
    assert item.failures == 6
    schedule.reset_failures("s")
    schedule.done(A, now, Retry())
    assert schedule.next_at("s") == now + FIRST_BACKOFF


def test_jitter_shortens_a_back_off_by_up_to_half() -> None:
    schedule = Schedule(random.Random(1).random)
    keys = [Key("shop", str(number)) for number in range(500)]
    for key in keys:
        schedule.add("s", change(key), 0.0)
    for item in schedule.take("s", 0.0, MANY):
        schedule.done(item.key, 0.0, Retry())
    assert schedule.take("s", FIRST_BACKOFF / 2 - 0.001, MANY) == ()
    halfway = len(schedule.take("s", FIRST_BACKOFF * 0.75, MANY))
    assert 200 < halfway < 300
    assert halfway + len(schedule.take("s", FIRST_BACKOFF, MANY)) == 500


def test_success_resets_the_count_of_failures() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    now = fail(schedule, A, 0.0, times=5)
    [item] = schedule.take("s", now, MANY)
    assert item.failures == 5
    schedule.done(A, now, Done())
    schedule.add("s", change(A), now)
    assert fail(schedule, A, now) == now + FIRST_BACKOFF


@pytest.mark.parametrize("urgent", [change(A), dependency(A)])
def test_a_change_ends_a_back_off_at_once_but_keeps_the_count_of_failures(urgent: Request) -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    fail(schedule, A, 0.0, times=3)
    schedule.add("s", urgent, 7.0)
    assert schedule.next_at("s") == 7.0
    [item] = schedule.take("s", 7.0, MANY)
    assert (item.rank, item.failures) == (urgent.rank, 3)
    schedule.done(A, 7.0, Retry())
    assert schedule.next_at("s") == 7.0 + 16.0
    assert schedule.take("s", 22.9, MANY) == ()


def test_a_resync_does_not_end_a_back_off() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    schedule.take("s", 0.0, MANY)
    schedule.add("s", resync(A), 0.5)
    schedule.done(A, 1.0, Retry())
    schedule.add("s", resync(A), 1.5)
    assert schedule.next_at("s") == 1.0 + FIRST_BACKOFF
    assert keys_of(schedule.take("s", 3.0, MANY)) == [A]
    schedule.done(A, 3.0, Done())
    assert schedule.next_at("s") is None


def test_a_resync_counts_if_the_waiting_request_is_due_before_the_end_of_the_back_off() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    schedule.take("s", 0.0, MANY)
    schedule.add("s", change(A), 2.0)
    schedule.done(A, 1.0, Retry())
    schedule.add("s", resync(A), 1.5)
    assert schedule.next_at("s") == 1.5


def test_a_change_during_a_reconcile_that_fails_is_reconciled_without_back_off() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    schedule.take("s", 0.0, MANY)
    schedule.add("s", change(A), 0.5)
    schedule.done(A, 1.0, Retry())
    [item] = schedule.take("s", 1.0, MANY)
    assert (item.rank, item.failures) == (Rank.CHANGE, 1)


def test_retry_after_comes_at_its_time_and_counts_as_neither_failure_nor_success() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A, RequestReason.NOTIFY), 0.0)
    now = fail(schedule, A, 0.0, times=2)
    schedule.take("s", now, MANY)
    schedule.done(A, now, RetryAfter(0.5))
    assert schedule.take("s", now + 0.4, MANY) == ()
    [item] = schedule.take("s", now + 0.5, MANY)
    assert item.failures == 2


def test_retry_after_zero_is_ready_at_once_with_the_rank_of_its_reconcile() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A, RequestReason.NOTIFY), 0.0)
    schedule.take("s", 0.0, MANY)
    assert schedule.done(A, 1.0, RetryAfter(0.0)) == "s"
    assert schedule.take("s", 1.0, MANY) == (WorkItem(A, RequestReason.NOTIFY, Rank.CHANGE, 0.0, 0),)


def test_each_server_takes_only_its_own_keys() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.add("t", change(B), 2.0)
    assert keys_of(schedule.take("t", 2.0, MANY)) == [B]
    assert schedule.next_at("t") is None
    assert schedule.next_at("s") == 1.0
    assert schedule.take("unknown", 2.0, MANY) == ()
    assert schedule.next_at("unknown") is None


def test_a_key_moves_to_the_server_that_it_was_last_added_to() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.add("s", change(B), 50.0)
    schedule.take("t", 1.0, MANY)
    assert schedule.backlog("s", 1.0).depth == 1
    schedule.add("t", resync(A), 2.0)
    schedule.add("t", resync(B), 60.0)
    assert schedule.take("s", 99.0, MANY) == ()
    assert schedule.next_at("s") is None
    assert keys_of(schedule.take("t", 2.0, MANY)) == [A]
    assert schedule.next_at("t") == 50.0


def test_a_key_that_is_reconciled_for_one_server_is_not_reconciled_for_another() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.take("s", 1.0, MANY)
    schedule.add("t", change(A), 2.0)
    assert schedule.take("t", 2.0, MANY) == ()
    assert schedule.done(A, 3.0, Done()) == "t"
    assert schedule.take("s", 3.0, MANY) == ()
    assert keys_of(schedule.take("t", 3.0, MANY)) == [A]


def test_failures_for_another_server_are_forgotten() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 0.0)
    fail(schedule, A, 0.0, times=4)
    schedule.add("t", change(A), 5.0)
    [item] = schedule.take("t", 5.0, MANY)
    assert item.failures == 0


@pytest.mark.parametrize("result", [Done(), Retry(), RetryAfter(1.0)])
def test_a_reconcile_for_a_removed_server_ends_without_another(result: NextAttempt) -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.take("s", 1.0, MANY)
    schedule.add("s", change(A), 1.5)
    schedule.remove_server("s")
    assert schedule.done(A, 2.0, result) is None
    assert schedule.next_at("s") is None


def test_a_key_of_a_removed_server_that_is_requested_during_its_reconcile_is_reconciled_after_it() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.take("s", 1.0, MANY)
    schedule.remove_server("s")
    schedule.add("s", change(A), 1.5)
    assert schedule.take("s", 1.5, MANY) == ()
    assert schedule.done(A, 2.0, Done()) == "s"
    assert keys_of(schedule.take("s", 2.0, MANY)) == [A]


def test_a_server_with_the_name_of_a_removed_one_starts_empty() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.add("s", change(B), 9.0)
    schedule.remove_server("s")
    schedule.remove_server("unknown")
    assert schedule.take("s", 9.0, MANY) == ()
    schedule.add("s", change(A), 9.0)
    assert keys_of(schedule.take("s", 9.0, MANY)) == [A]


def test_removing_a_server_removes_its_keys() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 1.0)
    schedule.take("s", 1.0, MANY)
    schedule.add("s", change(B), 1.0)
    schedule.add("t", change(C), 1.0)
    schedule.remove_server("s")
    assert schedule.done(A, 2.0, Retry()) is None
    assert schedule.take("s", 99.0, MANY) == ()
    assert keys_of(schedule.take("t", 2.0, MANY)) == [C]


def test_a_restart_resets_the_waiting_time_of_due_keys_and_keeps_later_ones() -> None:
    schedule = without_jitter()
    schedule.add("s", change(A), 100.0)
    assert schedule.backlog("s", 150.0) == Backlog(1, 50.0)  # read, as by a scrape
    schedule.add("s", change(B), 160.0)
    schedule.add("s", change(C), 900.0)
    schedule.restart(500.0)
    assert schedule.backlog("s", 500.0) == Backlog(2, 0.0)
    assert {item.key: item.waited for item in schedule.take("s", 501.0, 10)} == {A: 1.0, B: 1.0}
    assert schedule.next_at("s") == 900.0
    assert [item.waited for item in schedule.take("s", 900.0, 10)] == [0.0]


def test_the_backlog_has_the_number_of_due_keys_and_the_longest_wait() -> None:
    schedule = without_jitter()
    assert schedule.backlog("s", 1.0) == Backlog(0, 0.0)
    schedule.add("s", resync(A), 1.0)
    schedule.add("s", change(B), 4.0)
    schedule.add("s", change(C), 90.0)
    assert schedule.backlog("s", 5.0) == Backlog(2, 4.0)
    schedule.take("s", 5.0, 1)
    assert schedule.backlog("s", 6.0) == Backlog(1, 5.0)
    schedule.take("s", 6.0, 1)
    assert schedule.backlog("s", 6.0) == Backlog(0, 0.0)


def test_keys_at_rest_cost_nothing() -> None:
    schedule = without_jitter()
    for number in range(10_000):
        schedule.add("s", change(Key("shop", str(number))), 0.0)
    while items := schedule.take("s", 0.0, 100):
        for item in items:
            schedule.done(item.key, 0.0, Done())
    assert schedule._entries == {}
    assert schedule._queues["s"].delayed == []


def test_a_key_that_keeps_failing_and_being_requested_accumulates_nothing() -> None:
    schedule = without_jitter()
    for round_ in range(10_000):
        schedule.add("s", change(A), round_ / 100)
        schedule.take("s", round_ / 100, MANY)
        schedule.done(A, round_ / 100, Retry())
    assert len(schedule._queues["s"].delayed) < 100


@dataclass
class Expected:
    """The state of one key in the simplest model."""

    server: str = ""
    due: float | None = None  # None: it does not wait
    rank: Rank = Rank.RESYNC
    under_way: bool = False
    failures: int = 0
    backing_off: bool = False


@dataclass
class QueueModel:
    keys: dict[Key, Expected] = field(default_factory=dict)

    def add(self, server: str, request: Request, at: float) -> None:
        key = self.keys.setdefault(request.key, Expected(server))
        if key.server != server:
            key.server, key.failures, key.backing_off = server, 0, False
        self._wait(key, request.rank, at)

    def done(self, name: Key, now: float, result: NextAttempt, rank: Rank, delay: float) -> None:
        key = self.keys[name]
        key.under_way = False
        match result:
            case _ if not key.server:
                key.due = None
            case Done():
                key.failures = 0
            case Retry():
                key.failures += 1
                if key.due is not None and key.rank is Rank.RESYNC:
                    key.due = None
                self._wait(key, Rank.DEPENDENCY, now + delay)
                key.backing_off = key.due == now + delay
            case RetryAfter(seconds):
                self._wait(key, rank, now + seconds)

    def due(self, server: str, now: float) -> set[Key]:
        return {
            name
            for name, key in self.keys.items()
            if key.server == server and not key.under_way and key.due is not None and key.due <= now
        }

    def _wait(self, key: Expected, rank: Rank, at: float) -> None:
        if key.due is None:
            key.due, key.rank = at, rank
        elif not (key.backing_off and rank is Rank.RESYNC):
            if at < key.due:
                key.due, key.backing_off = at, False
            key.rank = min(key.rank, rank)


_KEYS = st.sampled_from([Key("shop", str(number)) for number in range(5)])
_SERVERS = st.sampled_from(["s", "t"])
_RANKS = st.sampled_from(Rank)
_DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.5, 3.0, 400.0])


class Interleavings(RuleBasedStateMachine):
    """put, take, done and time in any order: the schedule does what the model says, and loses nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = without_jitter()
        self.model = QueueModel()
        self.items: dict[Key, WorkItem] = {}
        self.now = 100.0

    @rule(key=_KEYS, server=_SERVERS, rank=_RANKS, delay=_DELAYS)
    def put(self, key: Key, server: str, rank: Rank, delay: float) -> None:
        request = Request(key, RequestReason.OBJECT, rank)
        self.model.add(server, request, self.now + delay)
        self.schedule.add(server, request, self.now + delay)

    @rule(server=_SERVERS, limit=st.integers(1, 4))
    def take(self, server: str, limit: int) -> None:
        due = self.model.due(server, self.now)
        items = self.schedule.take(server, self.now, limit)
        assert len(items) == min(limit, len(due))
        impatient = any(self.now - self._due(name) > PATIENCE for name in due)
        for item in items:
            assert item.key in due, "not due, of another server, or already in progress"
            expected = self.model.keys[item.key]
            assert (item.rank, item.failures) == (expected.rank, expected.failures)
            assert 0.0 <= item.waited <= self.now - self._due(item.key)
            best = min(self.model.keys[name].rank for name in due)
            in_turn = (best, item.rank) == (Rank.DRIFT, Rank.CHANGE)
            assert item.rank is best or impatient or in_turn
            due.remove(item.key)
            expected.due, expected.under_way, expected.backing_off = None, True, False
            self.items[item.key] = item

    @precondition(lambda self: self.items)
    @rule(data=st.data(), result=st.sampled_from([Done(), Done(), Retry(), RetryAfter(0.0), RetryAfter(2.5)]))
    def done(self, data: st.DataObject, result: NextAttempt) -> None:
        item = self.items.pop(data.draw(st.sampled_from(sorted(self.items))))
        failures = self.model.keys[item.key].failures
        delay = min(FIRST_BACKOFF * 2.0**failures, LONGEST_BACKOFF)
        self.model.done(item.key, self.now, result, item.rank, delay)
        server = self.schedule.done(item.key, self.now, result)
        key = self.model.keys[item.key]
        assert server == (key.server if key.due is not None else None)

    @rule(server=_SERVERS)
    def remove_server(self, server: str) -> None:
        self.schedule.remove_server(server)
        for key, known in self.model.keys.items():
            if known.server == server:
                self.model.keys[key] = Expected(server="", under_way=known.under_way)

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 500.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(server=_SERVERS)
    def read_backlog(self, server: str) -> None:
        depth, oldest = self.schedule.backlog(server, self.now)
        assert depth == len(self.model.due(server, self.now))
        assert oldest >= 0.0

    @invariant()
    def next_at_is_when_the_first_is_due(self) -> None:
        for server in ("s", "t"):
            waiting = [
                key.due
                for key in self.model.keys.values()
                if key.server == server and key.due is not None and not key.under_way
            ]
            at = self.schedule.next_at(server)
            if not waiting:
                assert at is None
            elif min(waiting) > self.now:
                assert at == min(waiting)
            else:
                assert at is not None
                assert at <= self.now

    @invariant()
    def only_keys_that_wait_or_are_under_way_are_held(self) -> None:
        held = {name for name, key in self.model.keys.items() if key.under_way or key.due is not None}
        assert set(self.schedule._entries) == held

    def teardown(self) -> None:
        """In the end every request has had its reconcile."""
        for name in list(self.items):
            self.schedule.done(name, self.now, Done())
            self.model.done(name, self.now, Done(), Rank.CHANGE, 0.0)
        for server in ("s", "t"):
            waiting = {name for name, key in self.model.keys.items() if key.server == server and key.due is not None}
            assert set(keys_of(self.schedule.take(server, self.now + 1_000.0, MANY))) == waiting

    def _due(self, name: Key) -> float:
        due = self.model.keys[name].due
        assert due is not None
        return due


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.slow
def test_a_key_requested_repeatedly_comes_after_all_that_were_requested_before(batch: int) -> None:
    """Anyone may announce every declared role at any rate: each is queued once, and waits behind all others."""
    schedule, now = without_jitter(), 0.0
    forged = [Key("shop", f"forged-{number}") for number in range(MANY)]
    for key in forged:
        schedule.add("s", change(key, RequestReason.NOTIFY), now)
    items = schedule.take("s", now, batch)
    schedule.add("s", change(A, RequestReason.NOTIFY), now)
    taken = len(items)
    while A not in keys_of(items):
        for key in forged:  # all of them, before each batch and during it
            schedule.add("s", change(key, RequestReason.NOTIFY), now)
        for item in items:
            schedule.done(item.key, now, Done())
        now += 0.001
        items = schedule.take("s", now, batch)
        taken += len(items)
        assert taken <= MANY + 1 + batch, "a key announced once must not wait for another to be reconciled twice"
