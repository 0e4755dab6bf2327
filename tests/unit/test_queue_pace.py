"""controller/queue, Pace: how many keys are reconciled at once."""

import itertools

import pytest

from pgrole_controller.controller.queue import BATCH_SECONDS, BURST, INTERVAL, LEAST, MOST, Pace


def settle(seconds_per_key: float, *, backlog: int = 10_000, fixed: float = 0.005) -> Pace:
    """Returns the pace after many batches at this speed."""
    pace = Pace()
    for _ in range(50):
        keys = min(pace.limit, backlog)
        pace.note(keys, fixed + keys * seconds_per_key)
    return pace


@pytest.mark.parametrize("seconds_per_key", [0.0025, 0.005, 0.01])
def test_the_batch_size_keeps_a_batch_within_its_intended_duration(seconds_per_key: float) -> None:
    pace = settle(seconds_per_key)
    assert pace.limit >= LEAST
    assert pace.limit * seconds_per_key <= BATCH_SECONDS
    assert pace.limit * seconds_per_key > BATCH_SECONDS / 3


def test_batches_grow_with_the_backlog_up_to_a_limit() -> None:
    assert settle(0.0001).limit == MOST
    assert settle(0.0001, backlog=3).limit == Pace().limit


def test_a_slow_server_still_gets_batches_of_the_minimum_size() -> None:
    assert settle(30.0).limit == LEAST


def test_batches_grow_again_after_a_slow_one() -> None:
    pace = Pace()
    pace.note(pace.limit, 4.0)
    assert pace.limit == LEAST
    for _ in range(10):
        pace.note(pace.limit, 0.005)
    assert pace.limit == MOST


def test_a_small_quick_batch_does_not_raise_the_limit() -> None:
    pace = Pace()
    before = pace.limit
    pace.note(1, 0.0001)
    assert pace.limit == before


def test_the_first_batches_come_in_a_burst_and_the_next_ones_at_intervals() -> None:
    pace, now, begun = Pace(), 100.0, []
    for _ in range(BURST + 20):
        now = max(now, pace.calm_until)
        pace.begin(now)
        begun.append(now)
    assert begun[:BURST] == [100.0] * BURST
    apart = [later - sooner for sooner, later in itertools.pairwise(begun[BURST - 1 :])]
    assert apart == pytest.approx([INTERVAL] * 20)


def test_a_burst_is_allowed_again_after_a_rest() -> None:
    pace = Pace()
    for _ in range(3 * BURST):
        pace.begin(max(100.0, pace.calm_until))
    assert pace.calm_until > 100.0
    pace.begin(200.0)
    assert pace.calm_until < 200.0
