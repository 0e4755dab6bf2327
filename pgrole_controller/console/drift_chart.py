"""Drifts by hour in a chart: as the controller counted them, else as roles record them.

The template draws the chart as SVG; its geometry is computed here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import cycle
from typing import Any

from pgrole_controller.console.drift_entries import DriftEntry
from pgrole_controller.console.object_fields import read_map, read_maps, read_number, read_time
from pgrole_controller.core.drift_record import HOURS, begin_of_hour

WIDTH, HEIGHT = 720, 190
_LEFT, _TOP, _BOTTOM = 48, 14, 40
_GAP = 6
_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class HourCount:
    """Drifts in the hour that begins at `hour` (UTC)."""

    hour: datetime
    corrected: int
    reported: int


def count_by_hour(entries: Iterable[DriftEntry], now: datetime) -> tuple[HourCount, ...]:
    """Counts drifts in the last 24 hours, the current one included, oldest first."""
    return _fill(((each.time, each.corrected, not each.corrected) for each in entries), now)


def read_counts(servers: Iterable[Mapping[str, Any]], now: datetime) -> tuple[HourCount, ...] | None:
    """Adds up `status.driftsPerHour` of PgServers. None if no server has it."""
    found: list[tuple[datetime, int, int]] = []
    known = False
    for server in servers:
        status = read_map(server, "status")
        known = known or isinstance(status.get("driftsPerHour"), list)
        for each in read_maps(status, "driftsPerHour", most=2 * HOURS):
            hour = read_time(each, "hour")
            corrected, reported = read_number(each, "corrected") or 0, read_number(each, "reported") or 0
            if hour is not None:
                found.append((hour, max(0, corrected), max(0, reported)))
    return _fill(found, now) if known else None


def at_least(counts: Sequence[HourCount], others: Sequence[HourCount]) -> tuple[HourCount, ...]:
    """The larger count of each hour. The controller writes its counts once a minute, histories of roles at once."""
    return tuple(
        HourCount(one.hour, max(one.corrected, other.corrected), max(one.reported, other.reported))
        for one, other in zip(counts, others, strict=True)
    )


def _fill(counts: Iterable[tuple[datetime, int, int]], now: datetime) -> tuple[HourCount, ...]:
    newest = begin_of_hour(now)
    hours = [newest - timedelta(hours=back) for back in reversed(range(HOURS))]
    sums = {hour: [0, 0] for hour in hours}
    for time, corrected, reported in counts:
        found = sums.get(begin_of_hour(time))
        if found is not None:
            found[0] += corrected
            found[1] += reported
    return tuple(HourCount(hour, *sums[hour]) for hour in hours)


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour: how many drifts, and where their parts of the bar are. A height is 0 if there was none."""

    hour: datetime
    x: float
    width: float
    corrected_y: float
    corrected_height: float
    reported_y: float
    reported_height: float
    corrected: int
    reported: int
    label: str


@dataclass(frozen=True, slots=True)
class DriftChart:
    """Bars of hours with a scale: `ticks` are (y, number). `source`: what the counts come from, in words."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, int], ...]
    corrected: int
    reported: int
    source: str
    left: int = _LEFT
    width: int = WIDTH
    height: int = HEIGHT
    baseline: int = HEIGHT - _BOTTOM


def chart_drifts(
    servers: Iterable[Mapping[str, Any]], drifts: Iterable[DriftEntry], now: datetime, where: str
) -> DriftChart:
    """The controller's own counts, if a server has them, or else `drifts` of roles. `where`: the servers, in words."""
    known, counted = read_counts(servers, now), count_by_hour(drifts, now)
    if known is None:
        return draw_chart(
            counted, "Counted from the last ten drifts of each role you may see, so there can have been more."
        )
    return draw_chart(at_least(known, counted), f"All drifts that the controller counted on {where}.")


def draw_chart(counts: Sequence[HourCount], source: str) -> DriftChart:
    """Places one bar for each hour. A label stands below every sixth hour of the day, in UTC."""
    top = _round_up(max((each.corrected + each.reported for each in counts), default=0))
    baseline = HEIGHT - _BOTTOM
    scale = (baseline - _TOP) / top
    step = (WIDTH - _LEFT) / max(1, len(counts))
    bars = []
    for place, count in enumerate(counts):
        corrected, reported = count.corrected * scale, count.reported * scale
        bars.append(
            Bar(
                hour=count.hour,
                x=round(_LEFT + place * step + _GAP / 2, 1),
                width=round(step - _GAP, 1),
                corrected_y=round(baseline - corrected, 1),
                corrected_height=round(corrected, 1),
                reported_y=round(baseline - corrected - reported, 1),
                reported_height=round(reported, 1),
                corrected=count.corrected,
                reported=count.reported,
                label=f"{count.hour:%H}:00" if count.hour.hour % 6 == 0 else "",
            )
        )
    ticks = tuple((round(baseline - number * scale, 1), number) for number in sorted({0, top // 2, top}))
    return DriftChart(
        bars=tuple(bars),
        ticks=ticks,
        corrected=sum(each.corrected for each in counts),
        reported=sum(each.reported for each in counts),
        source=source,
    )


def _round_up(number: int) -> int:
    """Returns the next even number of the form 2, 4, 10, 20, 40, 100: the top of the scale."""
    tops = (digit * 2 * 10 ** (place // len(_STEPS)) for place, digit in enumerate(cycle(_STEPS)))
    return int(next(top for top in tops if top >= number))
