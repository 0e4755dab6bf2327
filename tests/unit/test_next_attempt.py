"""core/next_attempt: when a key is reconciled next, for every way in which a reconcile can end. No I/O."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.contest import Contest, FieldContest, Moment
from pgrole_controller.core.errors import Reason, WaitingForDatabases
from pgrole_controller.core.next_attempt import (
    CONFIRM_SECONDS,
    CONFLICT_SECONDS,
    DATABASES_SECONDS,
    FAILED,
    INTERRUPTED,
    UNREACHABLE_SECONDS,
    Done,
    Ending,
    FailedWrite,
    NextAttempt,
    Retry,
    RetryAfter,
    WriteError,
    confirmation_due,
    next_attempt,
)
from pgrole_controller.core.outcome import PROGRESSING, RECONCILED, Outcome, Phase, of_error

NOW = 1_000.0
AT = Moment(NOW, datetime(2027, 1, 1, tzinfo=UTC))
CONFLICT = Outcome(Phase.STALLED, Reason.CONFLICT, "another object has it")
INVALID = Outcome(Phase.STALLED, Reason.INVALID_SPEC, "no such field")
SUSPENDED = Outcome(Phase.PAUSED, Reason.SUSPENDED, "suspended")
REVOKING = of_error(WaitingForDatabases(Reason.PROGRESSING, "privileges are revoked first"))
CONTESTED = Outcome(Phase.WORKING, Reason.CONTESTED, "something else keeps changing it")


def contest(until: float, delay: float = 2.0) -> Contest:
    """A field whose next repair is held back until `NOW` + `until`."""
    held = FieldContest((AT,), 5, AT, AT, drifts=True, delay=delay, until=AT.after(until))
    return Contest(1, NOW, {"connectionLimit": held})


def ready(rotation_in: float | None = None, *, unconfirmed: bool = False) -> Ending:
    return Ending(RECONCILED, decided=True, rotation_in=rotation_in, unconfirmed=unconfirmed)


def failed(error: WriteError, retry_after: float = 0.0) -> Ending:
    return Ending(RECONCILED, again_at_once=True, failed=FailedWrite(error, retry_after))


TABLE: list[tuple[str, Ending, Contest | None, float | None, NextAttempt]] = [
    # how it ended, contest, confirmation due at, next attempt
    ("nothing left to do", ready(), None, None, Done()),
    ("refused for the object's own fault", Ending(INVALID), None, None, Done()),
    ("suspended", Ending(SUSPENDED), None, None, Done()),
    ("waits for something", Ending(PROGRESSING, decided=True), None, None, Retry()),
    ("refused, and the cause may pass", Ending(CONFLICT), None, None, Retry()),
    ("waits for databases", Ending(REVOKING), None, None, RetryAfter(DATABASES_SECONDS)),
    ("object gone, waits for databases", Ending(REVOKING, gone=True), None, None, RetryAfter(DATABASES_SECONDS)),
    ("nothing to report yet", Ending(), None, None, Retry()),
    ("unexpected error", FAILED, None, None, Retry()),
    ("interrupted", INTERRUPTED, None, None, RetryAfter(0.0)),
    ("prerequisite done", Ending(PROGRESSING, again_at_once=True), None, None, RetryAfter(0.0)),
    ("object gone", Ending(gone=True), None, None, Done()),
    ("object gone, its claim is not released", Ending(CONFLICT, gone=True), None, None, Retry()),
    ("role changed", ready(unconfirmed=True), None, NOW + CONFIRM_SECONDS, RetryAfter(CONFIRM_SECONDS)),
    (
        "role changed, and more to do",
        Ending(PROGRESSING, decided=True, unconfirmed=True),
        None,
        NOW + CONFIRM_SECONDS,
        RetryAfter(CONFIRM_SECONDS),
    ),
    ("confirmation still due", ready(), None, NOW + 0.5, RetryAfter(0.5)),
    ("confirmation overdue", ready(), None, NOW - 0.5, RetryAfter(0.0)),
    ("confirmation due, but back-off", Ending(CONFLICT), None, NOW + 0.5, Retry()),
    ("confirmation due before rotation", ready(9.0), None, NOW + 0.5, RetryAfter(0.5)),
    ("rotation due", ready(9.0), None, None, RetryAfter(9.0)),
    ("rotation overdue waits for something else", ready(-1.0), None, None, Done()),
    ("rotation due, object refused", Ending(INVALID, rotation_in=9.0), None, None, Done()),
    ("contest", Ending(CONTESTED, decided=True), contest(4.0), None, RetryAfter(4.01)),
    ("contest before rotation", Ending(CONTESTED, decided=True, rotation_in=9.0), contest(4.0), None, RetryAfter(4.01)),
    ("rotation before contest", Ending(CONTESTED, decided=True, rotation_in=3.0), contest(4.0), None, RetryAfter(3.0)),
    ("contest overdue", Ending(CONTESTED, decided=True), contest(-1.0), None, RetryAfter(0.01)),
    ("repaired, not contested", ready(), contest(4.0, delay=0.0), None, Done()),
    ("suspended during a contest", Ending(SUSPENDED), contest(-1.0), None, Done()),
    ("write: object gone", failed(WriteError.GONE), None, None, Done()),
    ("write: conflict", failed(WriteError.CONFLICT), None, None, RetryAfter(CONFLICT_SECONDS)),
    ("write: unreachable", failed(WriteError.UNREACHABLE), None, None, RetryAfter(UNREACHABLE_SECONDS)),
    ("write: refused", failed(WriteError.REFUSED), None, None, Retry()),
    ("write: refused for a time", failed(WriteError.REFUSED, 7.0), None, None, RetryAfter(7.0)),
    ("write: unreachable, confirmation due", failed(WriteError.UNREACHABLE), None, NOW + 2.0, RetryAfter(2.0)),
]


@pytest.mark.parametrize(
    ("ending", "contested", "confirm_at", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_ending_has_its_next_attempt(
    ending: Ending, contested: Contest | None, confirm_at: float | None, expected: NextAttempt
) -> None:
    attempt = next_attempt(ending, contested, confirm_at, NOW)
    if isinstance(expected, RetryAfter):
        assert isinstance(attempt, RetryAfter)
        assert attempt.seconds == pytest.approx(expected.seconds)
    else:
        assert attempt == expected


@pytest.mark.parametrize(
    ("ending", "before", "expected"),
    [
        pytest.param(ready(unconfirmed=True), None, NOW + CONFIRM_SECONDS, id="role changed"),
        pytest.param(ready(unconfirmed=True), NOW + 0.5, NOW + CONFIRM_SECONDS, id="role changed again"),
        pytest.param(ready(), NOW + 0.5, NOW + 0.5, id="an earlier reconcile does not replace it"),
        pytest.param(ready(), NOW, None, id="it was this reconcile"),
        pytest.param(ready(), None, None, id="nothing changed"),
        pytest.param(INTERRUPTED, NOW + 0.5, NOW + 0.5, id="interrupted"),
        pytest.param(Ending(gone=True, unconfirmed=True), NOW + 0.5, None, id="object gone"),
    ],
)
def test_each_ending_determines_when_a_confirmation_is_due(
    ending: Ending, before: float | None, expected: float | None
) -> None:
    assert confirmation_due(ending, before, NOW) == expected


OUTCOMES = st.sampled_from([None, RECONCILED, PROGRESSING, CONFLICT, INVALID, SUSPENDED, CONTESTED])


@given(
    outcome=OUTCOMES,
    flags=st.tuples(*[st.booleans()] * 4),
    rotation_in=st.none() | st.floats(-1e6, 1e6),
    until=st.none() | st.floats(-1e3, 1e3),
    confirm_in=st.none() | st.floats(-1e3, 1e3),
)
def test_a_delay_is_never_negative_and_a_confirmation_is_never_late_except_for_back_off(
    outcome: Outcome | None,
    flags: tuple[bool, bool, bool, bool],
    rotation_in: float | None,
    until: float | None,
    confirm_in: float | None,
) -> None:
    prepared, decided, gone, unconfirmed = flags
    ending = Ending(outcome, prepared, decided, gone, unconfirmed, rotation_in)
    contested = None if until is None else contest(until)
    attempt = next_attempt(ending, contested, None if confirm_in is None else NOW + confirm_in, NOW)
    if isinstance(attempt, RetryAfter):
        assert attempt.seconds >= 0.0
    if confirm_in is not None and not isinstance(attempt, Retry):
        assert isinstance(attempt, RetryAfter)
        assert attempt.seconds <= max(confirm_in, 0.0) + 1e-6
