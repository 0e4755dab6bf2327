"""core/listed_drift: drifts as a status records them."""

from datetime import UTC, datetime

import pytest

from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.listed_drift import describe, read_status_entry


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "yesterday", 7, None])
def test_an_entry_whose_time_cannot_be_shown_is_left_out(text: object) -> None:
    """The API server accepts the first two."""
    assert read_moment(text) is None
    assert read_status_entry({"time": text, "fields": ["login"]}, "app", "shop/app") is None


def test_times_are_shown_in_utc() -> None:
    assert read_moment("2026-11-26T02:00:00+02:00") == datetime(2026, 11, 26, tzinfo=UTC)
    entry = read_status_entry({"time": "2026-11-26T02:00:00+02:00", "fields": ["login"]}, "app", "shop/app")
    assert entry is not None
    assert describe(entry)["time"] == "2026-11-26T00:00:00Z"
