"""Collects figures: the values measured for each quantity, one per repetition."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from bench.idle import Idle
from bench.quantities import QUANTITIES, Quantiles, Quantity
from bench.repair import Floor, Repairs


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity at one number of roles (None: independent of it). `values`: one or more, in its unit.

    `goal` and `floor` are in the same unit; the floor is from the same run.
    """

    quantity: Quantity
    roles: int | None
    values: tuple[float, ...]
    goal: float | None = None
    floor: float | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.quantity.name, self.roles

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def noise(self) -> float | None:
        """Spread of the repetitions in the unit; None if there is only one."""
        return max(self.values) - min(self.values) if len(self.values) > 1 else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.quantity.better == "lower" else self.value >= self.goal


class Sheet:
    """Collects values as they are measured."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int | None], list[float]] = {}

    def note(self, name: str, value: float, roles: int | None = None) -> None:
        """Records one repetition of a known quantity. Raises KeyError for another."""
        self._values.setdefault((QUANTITIES[name].name, roles), []).append(value)

    def note_floor(self, floor: Floor, hot: Floor, roles: int) -> None:
        self.note("floor.repair", floor.total, roles)
        self.note("floor.repair.notify", floor.notify, roles)
        self.note("floor.repair.read", floor.read, roles)
        self.note("floor.repair.alter", floor.alter, roles)
        self.note("floor.hot", hot.total, roles)

    def note_repairs(self, name: str, repairs: Repairs, roles: int, floor: Floor | None = None) -> None:
        """Also records, given a `floor`, the repair after the NOTIFY as a multiple of it."""
        for suffix, part in (("", repairs.whole), (".heard", repairs.detection), (".reaction", repairs.reaction)):
            self._note_quantiles(f"{name}{suffix}", part, roles)
        if floor is not None:
            self.note(f"{name}.floors", repairs.reaction.p50 / floor.total, roles)

    def note_idle(self, idle: Idle, roles: int) -> None:
        self.note("idle.postgres", idle.database, roles)
        self.note("idle.watch", idle.watch, roles)
        self.note("idle.commits", idle.commits, roles)
        self.note("idle.controller", idle.controller, roles)

    def figures(self) -> tuple[Figure, ...]:
        """Figures in the order of `QUANTITIES`, then of roles."""
        ranks = {name: rank for rank, name in enumerate(QUANTITIES)}
        keys = sorted(self._values, key=lambda key: (ranks[key[0]], key[1] or 0))
        return tuple(self._figure(name, roles) for name, roles in keys)

    def _figure(self, name: str, roles: int | None) -> Figure:
        quantity = QUANTITIES[name]
        floor = None if quantity.floor is None else self._median(quantity.floor, (roles, None))
        return Figure(quantity, roles, tuple(self._values[name, roles]), quantity.goal(roles), floor)

    def _median(self, name: str, where: Iterable[int | None]) -> float | None:
        """Returns the median at the first of these numbers of roles for which values exist."""
        found = (self._values[name, roles] for roles in where if (name, roles) in self._values)
        return next((median(values) for values in found), None)

    def _note_quantiles(self, name: str, of: Quantiles, roles: int) -> None:
        self.note(f"{name}.p50", of.p50, roles)
        self.note(f"{name}.p90", of.p90, roles)
        self.note(f"{name}.p99", of.p99, roles)
