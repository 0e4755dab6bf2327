"""When a server without a session is tried again, and which failures are reported."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.reconnect import (
    ANOTHER_SECONDS,
    HOPEFUL_SECONDS,
    LONGEST_DELAY,
    MOST_A_SECOND,
    REPEAT_SECONDS,
    TROUBLED_SECONDS,
    Cause,
    Outage,
    add_failure,
)

CAUSES = st.sampled_from(Cause)


def play(cause: Cause, seconds: float, *, away: int = 1, first: Cause | None = None) -> list[tuple[float, Outage]]:
    """Plays an outage in which attempts take no time. Returns when each attempt failed, and the outage after it."""
    outage, now, played = None, 1000.0, []
    while now < 1000.0 + seconds:
        outage = add_failure(outage, cause if outage or first is None else first, "the same", now, away)
        played.append((now, outage))
        now += outage.delay
    return played


@pytest.mark.parametrize(
    ("cause", "every"), [(Cause.REFUSED, 0.2), (Cause.STARTING, 0.25), (Cause.LOST, 1.0), (Cause.ENDED, 0.2)]
)
def test_failures_that_cost_a_server_little_are_retried_at_a_constant_interval_for_a_minute(
    cause: Cause, every: float
) -> None:
    delays = [outage.delay for now, outage in play(cause, HOPEFUL_SECONDS - 1e-6)]
    assert delays == [every] * round(HOPEFUL_SECONDS / every)


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.STARTING, Cause.LOST])
def test_back_off_begins_after_that_minute(cause: Cause) -> None:
    delays = [outage.delay for now, outage in play(cause, 600) if now >= 1000.0 + HOPEFUL_SECONDS]
    assert delays[:7] == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, LONGEST_DELAY]
    assert set(delays[7:]) == {LONGEST_DELAY}


def test_other_failures_are_retried_at_most_once_a_second_and_back_off_at_once() -> None:
    delays = [outage.delay for _, outage in play(Cause.OTHER, 120)]
    assert delays[:7] == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, LONGEST_DELAY]
    assert len(play(Cause.OTHER, 45)) < 10


def test_an_ended_session_is_retried_quickly_unless_another_error_follows() -> None:
    (_, ended), (_, refused), *_ = play(Cause.REFUSED, 5, first=Cause.ENDED)
    assert (ended.delay, refused.delay) == (0.2, 0.2)
    assert add_failure(ended, Cause.OTHER, "no", 1000.2).delay == TROUBLED_SECONDS


def test_an_attempt_overtaken_by_another_process_is_not_a_failure_of_the_server() -> None:
    assert [outage.delay for _, outage in play(Cause.OVERTAKEN, 3)] == [0.25, 0.5, 1.0, 2.0]


def test_another_error_before_refusals_does_not_end_the_minute_of_quick_retries() -> None:
    outage = add_failure(None, Cause.OTHER, "no connection left", 0.0)
    assert add_failure(outage, Cause.REFUSED, "refused", 1.0).delay == 0.2
    assert add_failure(outage, Cause.REFUSED, "refused", HOPEFUL_SECONDS).delay == TROUBLED_SECONDS


@pytest.mark.parametrize("away", [1, 10, 11, 200, 1000])
def test_attempts_to_many_servers_together_are_limited_per_second(away: int) -> None:
    (_, outage), *_ = play(Cause.REFUSED, 0.1, away=away)
    assert outage.delay == max(0.2, away / MOST_A_SECOND)


@given(st.lists(st.tuples(CAUSES, st.floats(0, 30), st.text(max_size=3)), min_size=1, max_size=40))
def test_no_sequence_of_failures_causes_a_retry_storm_or_an_endless_wait(steps: list[tuple[Cause, float, str]]) -> None:
    outage, now = None, 0.0
    for cause, took, error in steps:
        now += took
        outage = add_failure(outage, cause, error, now)
        assert 0.2 <= outage.delay <= LONGEST_DELAY
        assert outage.delay >= TROUBLED_SECONDS or cause is not Cause.OTHER
        now += outage.delay


@given(st.lists(st.tuples(CAUSES, st.text(max_size=3)), min_size=1, max_size=300))
def test_reports_of_errors_keep_a_minimum_interval(steps: list[tuple[Cause, str]]) -> None:
    outage, now, told = None, 0.0, []
    for cause, error in steps:
        outage = add_failure(outage, cause, error, now)
        if outage.is_news:
            told.append(now)
            assert outage.told == error
        now += outage.delay
    assert told[0] == 0.0
    assert all(later - sooner >= ANOTHER_SECONDS for sooner, later in pairwise(told))


def test_an_outage_is_reported_at_once_and_again_every_minute() -> None:
    told = [now - 1000.0 for now, outage in play(Cause.REFUSED, 3 * REPEAT_SECONDS) if outage.is_news]
    assert told[0] == 0.0
    assert told[1] == pytest.approx(REPEAT_SECONDS, abs=LONGEST_DELAY)
    assert len(told) == 3


def test_another_error_is_reported_after_a_minimum_interval() -> None:
    refused = add_failure(None, Cause.REFUSED, "refused", 0.0)
    starting = add_failure(refused, Cause.STARTING, "starting up", ANOTHER_SECONDS - 0.1)
    assert (starting.is_news, starting.told) == (False, "refused")
    starting = add_failure(starting, Cause.STARTING, "starting up", ANOTHER_SECONDS)
    assert (starting.is_news, starting.told, starting.failures) == (True, "starting up", 3)
