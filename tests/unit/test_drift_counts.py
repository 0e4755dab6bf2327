"""core/drift_record: drifts by hour, and which entries of a status count."""

from datetime import UTC, datetime, timedelta

from pgrole_controller.core.drift_record import HOURS, MOST_COUNTED, HourlyDrifts, read_hourly_drifts

NOON = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)


def test_drifts_of_one_hour_add_up_and_the_newest_hour_is_first() -> None:
    counts = HourlyDrifts().add(NOON, corrected=1).add(NOON - timedelta(hours=1), reported=2).add(NOON, corrected=3)
    assert counts.to_status() == [
        {"hour": "2026-11-22T12:00:00Z", "corrected": 4, "reported": 0},
        {"hour": "2026-11-22T11:00:00Z", "corrected": 0, "reported": 2},
    ]


def test_counts_written_to_a_status_are_read_back() -> None:
    counts = HourlyDrifts().add(NOON, corrected=1).add(NOON - timedelta(hours=3), reported=2)
    assert read_hourly_drifts(counts.to_status()) == counts


def test_counts_are_kept_for_a_day_and_those_of_the_future_are_discarded() -> None:
    counts = HourlyDrifts()
    for back in range(-5, 40):
        counts = counts.add(NOON - timedelta(hours=back), corrected=1)
    kept = counts.since(NOON).to_status()
    assert len(kept) == HOURS
    assert (kept[0]["hour"], kept[-1]["hour"]) == ("2026-11-22T12:00:00Z", "2026-11-21T13:00:00Z")


def test_invalid_entries_in_a_status_are_ignored() -> None:
    good = {"hour": "2026-11-22T12:00:00Z", "corrected": 1, "reported": 0}
    bad = [None, 1, {}, {"hour": 5}, {"hour": "x"}, {**good, "hour": "2026-11-22T12:00:00"}, {**good, "corrected": -1}]
    bad += [{**good, "corrected": "1"}, {**good, "reported": 2**40}, {**good, "reported": None}]
    bad += [{**good, "hour": "9999-12-31T23:59:59-05:00"}]
    nothing: tuple[object, ...] = (None, {}, "text", 5)
    for entries in nothing:
        assert read_hourly_drifts(entries) == HourlyDrifts()
    assert read_hourly_drifts([*bad, good, good]).to_status() == [good]
    many = [{**good, "hour": f"{NOON + timedelta(hours=n):%FT%TZ}"} for n in range(500)]
    assert len(read_hourly_drifts(many).hours) <= 48


def test_counts_do_not_grow_beyond_what_the_crd_admits() -> None:
    counts = HourlyDrifts().add(NOON, corrected=MOST_COUNTED).add(NOON, corrected=5)
    assert counts.to_status()[0]["corrected"] == MOST_COUNTED
