"""All quantities by name: unit, which direction is better, goal and floor; and quantiles of durations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Better = Literal["lower", "higher"]

FLOOR = "floor."


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of durations in milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Quantiles":
        ranked = sorted(seconds)

        def at(share: float) -> float:
            return 1000 * ranked[min(len(ranked) - 1, math.ceil(share * len(ranked)) - 1)]

        return cls(at(0.5), at(0.9), at(0.99))

    def __str__(self) -> str:
        return f"{self.p50:7.2f} {self.p90:7.2f} {self.p99:7.2f}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of figure.

    - `goals`: each with the largest number of roles it applies to; key None if the quantity has no number of roles.
    - `floor`: name of the unavoidable part, measured in the same run.
    - `paced`: a slower machine scales figure and floor alike, so growth in proportion to the floor is no regression.
    - `margin`, `resolution`: differences below this share, or below this amount in the unit, are always noise.
    """

    name: str
    unit: str
    goals: Mapping[int | None, float | None] = field(default_factory=dict)
    floor: str | None = None
    paced: bool = True
    margin: float = 0.10
    resolution: float = 0.0
    better: Better = "lower"

    def goal(self, roles: int | None) -> float | None:
        if roles is None:
            return self.goals.get(None)
        limits = sorted(limit for limit in self.goals if limit is not None and limit >= roles)
        return self.goals[limits[0]] if limits else None

    @property
    def is_floor(self) -> bool:
        return self.name.startswith(FLOOR)


_REPAIR = "floor.repair"
_REQUEST = "floor.request"
_RETURN = "floor.return"

#: How much quantiles of a distribution vary between runs by themselves.
_MARGINS = {"p50": 0.10, "p90": 0.20, "p99": 0.40}

#: Two or more ticks of the kernel's clock in an idle window of 15 s, in percent of a core.
_TICKS = 0.1

#: The kernel keeps or drops pages at will, in MiB.
_PAGES = 1.0


def _distribution(
    name: str, goals: Mapping[int | None, float | None] | None = None, floor: str | None = None
) -> tuple[Quantity, ...]:
    """The goal applies to the median."""
    return tuple(
        Quantity(f"{name}.{which}", "ms", (goals or {}) if which == "p50" else {}, floor, margin=margin)
        for which, margin in _MARGINS.items()
    )


def _repairs(name: str, goals: Mapping[int | None, float | None] | None = None) -> tuple[Quantity, ...]:
    """Commit to repair, and its two parts, before and after the NOTIFY."""
    return (
        *_distribution(name, goals, _REPAIR),
        *_distribution(f"{name}.heard"),
        *_distribution(f"{name}.reaction", floor=_REPAIR),
    )


def _memory(name: str, goal: float | None) -> tuple[Quantity, ...]:
    return (
        Quantity(name, "MiB", {1_000: None, 10_000: goal}, "floor.python.memory", False, 0.03, _PAGES),
        Quantity(f"{name}.above", "MiB", {10_000: 40.0}, margin=0.05, resolution=_PAGES),
    )


_ALL = (
    Quantity("floor.python.cpu", "s"),
    Quantity("floor.python.memory", "MiB"),
    Quantity("start.cpu", "s", floor="floor.python.cpu"),
    Quantity("start.memory", "MiB", floor="floor.python.memory", paced=False, margin=0.03, resolution=_PAGES),
    Quantity("empty.memory", "MiB", {None: 45.0}, "floor.python.memory", False, 0.03, _PAGES),
    Quantity("empty.memory.own", "MiB", margin=0.03, resolution=_PAGES),
    Quantity(_REQUEST, "ms"),
    Quantity("request.cpu", "ms", floor=_REQUEST),
    Quantity("floor.posting", "s"),
    Quantity("floor.writing", "s"),
    Quantity("objects.cpu", "ms", {1_000: 3.0}, _REQUEST),
    Quantity("objects.cpu.postgres", "ms"),
    Quantity("objects.cpu.apiserver", "ms"),
    Quantity("objects.ready.last", "s", {1_000: 1.0}, margin=0.25),
    Quantity("objects.posting", "s", floor="floor.posting"),
    Quantity("objects.ready.first", "s", {1_000: 5.0}, "floor.writing"),
    Quantity(_RETURN, "s"),
    Quantity("outage.drift", "s", {1_000: 0.6}, _RETURN, False, 0.25),
    Quantity("outage.spec", "s", {}, _RETURN, False, 0.25),
    Quantity("outage.ready", "s", {100: 1.0, 1_000: 2.0}, _RETURN, False, 0.25),
    Quantity(_REPAIR, "ms"),
    Quantity("floor.repair.notify", "ms"),
    Quantity("floor.repair.read", "ms"),
    Quantity("floor.repair.alter", "ms"),
    Quantity("floor.hot", "ms"),
    *_repairs("quiet", {1_000: 8.0, 10_000: 12.0}),
    Quantity("quiet.floors", "×", {10_000: 4.0}),
    *_repairs("busy", {10: 20.0, 1_000: 25.0, 10_000: 40.0}),
    Quantity("busy.floors", "×", {10_000: 4.0}),
    *_repairs("password"),
    Quantity("poll.nothing", "ms", floor=_REPAIR, margin=0.20),
    Quantity("poll.commit", "ms", floor=_REPAIR, margin=0.20),
    Quantity("poll.change", "ms", floor=_REPAIR, margin=0.20),
    Quantity("floor.idle", "%"),
    Quantity("idle.postgres", "%", {10_000: 1.1}, "floor.idle", False, 0.15, _TICKS),
    Quantity("idle.watch", "%", margin=0.15, resolution=_TICKS),
    Quantity("idle.commits", "/s", {10_000: 2.0}, resolution=0.2),
    Quantity("idle.controller", "%", {10_000: 1.0}, margin=0.15, resolution=_TICKS),
    Quantity("load.ready", "s"),
    Quantity("restart.repaired", "s", margin=0.25),
    *_memory("loaded.memory", 85.0),
    *_memory("restarted.memory", 85.0),
)

QUANTITIES: Mapping[str, Quantity] = {quantity.name: quantity for quantity in _ALL}
