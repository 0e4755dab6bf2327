"""Geometry of the chart of drifts by hour. The template draws it as SVG."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from typing import Any

from pgrole_controller.console.drift_entries import DriftEntry, HourCount, at_least, count_by_hour, read_counts

WIDTH, HEIGHT = 720, 190
_LEFT, _TOP, _BOTTOM = 48, 14, 40
_GAP = 6
_STEPS = (1, 2, 5)


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
