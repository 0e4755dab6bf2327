"""The figures as one Markdown table, each beside its goal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.idle import Idle, Memory
from bench.objects import Loading
from bench.observe import Quantiles
from bench.poll import Poll
from bench.repair import Floor, Repairs
from bench.restart import Restart


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured at one number of declared roles; None: not asked for."""

    roles: int
    loading: Loading
    memory_loaded: Memory
    restart: Restart
    memory_restarted: Memory
    floor: Floor
    hot_floor: Floor
    idle: Idle | None = None
    quiet: Repairs | None = None
    busy: Repairs | None = None
    password: Repairs | None = None
    poll: Poll | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure as shown, and whether it meets its goal (None: there is none)."""

    text: str
    met: bool | None = None

    def __str__(self) -> str:
        return self.text + {None: "", True: " ✓", False: " ✗"}[self.met]


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    goal: str
    cell: Callable[[Figures], Cell | None]


def render(figures: Sequence[Figures], empty: Memory) -> str:
    """`empty` is the controller's memory without objects. Rows that nothing was measured for are left out."""
    lines = [_line(["", "goal", *(f"{one.roles:,} roles" for one in figures)]), _line(["---"] * (2 + len(figures)))]
    for row in (*_ROWS, *_memory_rows(empty)):
        cells = [row.cell(one) for one in figures]
        if any(cells):
            lines.append(_line([row.label, row.goal, *("" if cell is None else str(cell) for cell in cells)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _quiet_goal(roles: int) -> float:
    return 8 if roles <= 1_000 else 15


def _busy_goal(roles: int) -> float:
    return 20 if roles <= 10 else 25 if roles <= 1_000 else 60


def _quantiles(of: Quantiles, goal: float | None = None) -> Cell:
    return Cell(f"{of.p50:.1f} / {of.p90:.1f} / {of.p99:.1f}", None if goal is None else of.p50 <= goal)


def _whole(repairs: Repairs | None, goal: float | None = None) -> Cell | None:
    return None if repairs is None else _quantiles(repairs.whole, goal)


def _detection(repairs: Repairs | None) -> Cell | None:
    return None if repairs is None else _quantiles(repairs.detection)


def _reaction(repairs: Repairs | None) -> Cell | None:
    return None if repairs is None else _quantiles(repairs.reaction)


def _multiple(repairs: Repairs | None, floor: Floor) -> Cell | None:
    if repairs is None:
        return None
    times = repairs.reaction.p50 / floor.total
    return Cell(f"{times:.1f} ×", times <= 4)


def _floor(floor: Floor) -> Cell:
    return Cell(f"{floor.total:.2f} = {floor.notify:.2f} + {floor.read:.2f} + {floor.alter:.2f}")


def _poll(poll: Poll | None) -> Cell | None:
    return None if poll is None else Cell(f"{poll.nothing:.2f} / {poll.commit:.2f} / {poll.change:.2f}")


def _commits(idle: Idle | None) -> Cell | None:
    return None if idle is None else Cell(f"{idle.commits:.1f}", idle.commits <= 2)


def _percent(idle: Idle | None, value: Callable[[Idle], float], goal: float | None = None) -> Cell | None:
    if idle is None:
        return None
    return Cell(f"{value(idle):.2f} %", None if goal is None else value(idle) <= goal)


_ROWS = (
    Row("floor, ms: NOTIFY + read one role + ALTER ROLE, p50", "", lambda f: _floor(f.floor)),
    Row("the same again and again, without a pause", "", lambda f: _floor(f.hot_floor)),
    Row(
        "**quiet: drift committed → repaired**, ms, p50 / p90 / p99",
        "p50 ≤ 8, 8, 15",
        lambda f: _whole(f.quiet, _quiet_goal(f.roles)),
    ),
    Row("of it → NOTIFY heard", "", lambda f: _detection(f.quiet)),
    Row("of it NOTIFY heard → repaired", "", lambda f: _reaction(f.quiet)),
    Row("NOTIFY heard → repaired, in floors, p50", "≤ 4 ×", lambda f: _multiple(f.quiet, f.floor)),
    Row(
        "**200 commits/s: drift committed → repaired**, ms, p50 / p90 / p99",
        "p50 ≤ 20, 25, 60",
        lambda f: _whole(f.busy, _busy_goal(f.roles)),
    ),
    Row("of it → NOTIFY heard", "", lambda f: _detection(f.busy)),
    Row("of it NOTIFY heard → repaired", "", lambda f: _reaction(f.busy)),
    Row("NOTIFY heard → repaired, in floors, p50", "≤ 4 ×", lambda f: _multiple(f.busy, f.floor)),
    Row(
        "**quiet: password changed, committed → set back**, ms, p50 / p90 / p99",
        "",
        lambda f: _whole(f.password),
    ),
    Row("of it → NOTIFY heard", "", lambda f: _detection(f.password)),
    Row("of it NOTIFY heard → set back: Secret read, hashed", "", lambda f: _reaction(f.password)),
    Row(
        "one round of Poll, ms, p50: nothing was committed / something else was / one role was changed",
        "",
        lambda f: _poll(f.poll),
    ),
    Row("idle: PostgreSQL, of a core", "≤ 1.5 %", lambda f: _percent(f.idle, lambda idle: idle.database, 1.5)),
    Row("of it the backend that runs `watch`", "", lambda f: _percent(f.idle, lambda idle: idle.watch)),
    Row("idle: commits of `watch` a second", "≤ 2", lambda f: _commits(f.idle)),
    Row("idle: controller, of a core", "≤ 1 %", lambda f: _percent(f.idle, lambda idle: idle.controller, 1.0)),
    Row(
        "objects applied → all Ready",
        "",
        lambda f: Cell(f"{f.loading.objects:,} in {f.loading.seconds:.1f} s"),
    ),
    Row(
        "controller started → all looked at, drifts made meanwhile repaired",
        "",
        lambda f: Cell(f"{f.restart.seconds:.1f} s ({f.restart.drifts} drifts)"),
    ),
)


def _memory_rows(empty: Memory) -> Sequence[Row]:
    def above(memory: Memory) -> Cell:
        return Cell(f"{memory.own - empty.own:.1f} MiB", memory.own - empty.own <= 40)

    return (
        Row(
            "controller's resident memory, after applying / after a start",
            "",
            lambda f: Cell(f"{f.memory_loaded.resident:.0f} / {f.memory_restarted.resident:.0f} MiB"),
        ),
        Row("its own memory above that without objects, after applying", "≤ 40 MiB", lambda f: above(f.memory_loaded)),
        Row("the same after a start", "≤ 40 MiB", lambda f: above(f.memory_restarted)),
    )
