"""Back-off: doubles up to a maximum, with jitter, and is reset after a healthy period."""

import pytest

from pgrole_controller.core.backoff import Backoff, Streak

BACKOFF = Backoff(0.8, 30.0)


def test_the_delay_doubles_up_to_its_maximum_and_is_reset_after_two_healthy_minutes() -> None:
    streak, now, waits = Streak(), 0.0, []
    for _ in range(8):
        failures = streak.count(now, healthy=120.0) + 1
        waits.append(BACKOFF.delay(failures))
        now += waits[-1]
        streak = Streak(failures, now)
    assert waits == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert streak.count(now + 119.0, healthy=120.0) == 8
    assert streak.count(now + 120.0, healthy=120.0) == 0


def test_jitter_shortens_a_delay_by_up_to_half() -> None:
    assert BACKOFF.delay(1, 0.999) == pytest.approx(0.4, abs=0.01)
    assert BACKOFF.delay(2, 0.5) == pytest.approx(1.2)


def test_a_longer_wait_is_twice_as_long_up_to_the_maximum() -> None:
    waits = [0.0]
    for _ in range(8):
        waits.append(BACKOFF.longer(waits[-1]))
    assert waits == [0.0, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_any_number_of_failures_has_a_delay() -> None:
    assert BACKOFF.delay(10**9) == 30.0
