"""controller/queue, Pace: how many keys are reconciled at once."""

import itertools

import pytest

from pgrole_controller.controller.queue import BATCH_SECONDS, BURST, INTERVAL, LEAST, MOST, Pace


def settle(seconds_per_key: float, *, backlog: int = 10_000, fixed: float = 0.005) -> Pace:
    """After many batches at this pace."""
    pace = Pace()
    for _ in range(50):
        keys = min(pace.limit, backlog)
        pace.note(keys, fixed + keys * seconds_per_key)
    return pace


@pytest.mark.parametrize("seconds_per_key", [0.0025, 0.005, 0.01])
def test_a_batch_takes_no_longer_than_a_moment(seconds_per_key: float) -> None:
    pace = settle(seconds_per_key)
    assert pace.limit >= LEAST
    assert pace.limit * seconds_per_key <= BATCH_SECONDS
    assert pace.limit * seconds_per_key > BATCH_SECONDS / 3


def test_batches_grow_with_the_backlog_up_to_their_bound() -> None:
    assert settle(0.0001).limit == MOST
    assert settle(0.0001, backlog=3).limit == Pace().limit


def test_however_slow_the_server_some_are_reconciled_at_once() -> None:
    assert settle(30.0).limit == LEAST


def test_what_was_slow_for_a_moment_is_fast_again() -> None:
    pace = Pace()
    pace.note(pace.limit, 4.0)
    assert pace.limit == LEAST
    for _ in range(10):
        pace.note(pace.limit, 0.005)
    assert pace.limit == MOST


def test_a_small_batch_that_was_quick_is_no_reason_for_larger_ones() -> None:
    pace = Pace()
    before = pace.limit
    pace.note(1, 0.0001)
    assert pace.limit == before


def test_a_few_batches_follow_each_other_at_once_and_the_next_ones_at_intervals() -> None:
    pace, now, begun = Pace(), 100.0, []
    for _ in range(BURST + 20):
        now = max(now, pace.calm_until)
        pace.begin(now)
        begun.append(now)
    assert begun[:BURST] == [100.0] * BURST
    apart = [later - sooner for sooner, later in itertools.pairwise(begun[BURST - 1 :])]
    assert apart == pytest.approx([INTERVAL] * 20)


def test_after_a_rest_batches_follow_each_other_at_once_again() -> None:
    pace = Pace()
    for _ in range(3 * BURST):
        pace.begin(max(100.0, pace.calm_until))
    assert pace.calm_until > 100.0
    pace.begin(200.0)
    assert pace.calm_until < 200.0
