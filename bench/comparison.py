"""Compares two runs figure by figure: ratios, and which differences exceed the noise.

A difference counts if it exceeds the noise of both runs together. A run's noise is the spread of its repetitions or,
with only one, `UNKNOWN_NOISE` of the value. Differences below the quantity's margin or resolution never count. Where a
figure has a floor, the difference must remain after both are divided by their floors, since the machine may have been
slower. Floors are the machine's own figures and are not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.sheet import Figure

#: Share of the value, for a single repetition.
UNKNOWN_NOISE = 0.10


class Verdict(StrEnum):
    WORSE = "WORSE"
    BETTER = "better"
    NOISE = "within noise"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """`ratio`: new to old (None: the old value is 0). `paced`: the same for multiples of the floors, if comparable.

    `noise`: of both runs, in the unit.
    """

    old: Figure
    new: Figure
    ratio: float | None
    paced: float | None
    noise: float
    verdict: Verdict


def compare(old: Sequence[Figure], new: Sequence[Figure]) -> tuple[FigureComparison, ...]:
    """Compares the figures that both runs have, in the order of the new run."""
    before = {figure.key: figure for figure in old}
    return tuple(_compare(before[figure.key], figure) for figure in new if figure.key in before)


def missing(old: Sequence[Figure], new: Sequence[Figure]) -> tuple[Figure, ...]:
    """Returns the figures of the old run that the new one lacks."""
    known = {figure.key for figure in new}
    return tuple(figure for figure in old if figure.key not in known)


def _compare(old: Figure, new: Figure) -> FigureComparison:
    noise = _noise(old, new)
    adjusted = _adjusted(old, new)
    return FigureComparison(
        old,
        new,
        new.value / old.value if old.value else None,
        adjusted / old.value if adjusted is not None and old.value else None,
        noise,
        _judge(old, new, adjusted, noise),
    )


def _noise(old: Figure, new: Figure) -> float:
    spread = sum(UNKNOWN_NOISE * abs(one.value) if one.noise is None else one.noise for one in (old, new))
    return max(spread, new.quantity.margin * abs(old.value), new.quantity.resolution)


def _adjusted(old: Figure, new: Figure) -> float | None:
    """Returns the new value scaled to the old run's machine; None if no floor allows it."""
    if not new.quantity.paced or not old.floor or not new.floor:
        return None
    return new.value * old.floor / new.floor


def _judge(old: Figure, new: Figure, adjusted: float | None, noise: float) -> Verdict:
    if new.quantity.is_floor:
        return Verdict.FLOOR
    sign = 1 if new.quantity.better == "lower" else -1
    worsened = [sign * (value - old.value) for value in (new.value, adjusted) if value is not None]
    if min(worsened) > noise:
        return Verdict.WORSE
    return Verdict.BETTER if max(worsened) < -noise else Verdict.NOISE
