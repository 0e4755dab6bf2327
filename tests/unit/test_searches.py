"""postgres/privileges/searches: polls take little of the time, and one slow poll delays no other."""

import pytest

from pgrole_controller.postgres.privileges.searches import LONGEST_PAUSE_SECONDS, POLLING_SHARE, PollPace


def test_slow_polls_beside_a_quick_one_do_not_delay_the_next() -> None:
    pace = PollPace(1.0)
    assert [pace.pause_after(took) for took in (0.5, 0.7, 0.001, 0.5, 0.001, 2.0, 0.6)] == [1.0] * 7


@pytest.mark.parametrize("interval", [0.2, 1.0, 60.0])
def test_polls_of_a_large_catalog_take_their_share_of_the_time(interval: float) -> None:
    pace = PollPace(interval)
    pauses = [pace.pause_after(0.1) for _ in range(5)]
    assert pauses == [interval, interval, *[max(interval, 0.1 / POLLING_SHARE)] * 3]


def test_no_pause_is_longer_than_the_longest_or_the_interval() -> None:
    for interval in (1.0, 60.0):
        pace = PollPace(interval)
        pauses = [pace.pause_after(10.0) for _ in range(4)]
        assert pauses == [interval, interval, *[max(interval, LONGEST_PAUSE_SECONDS)] * 2]
