"""Renders the figures of a run as the README's Markdown table, as a list, and in comparison with a stored run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.comparison import FigureComparison, Verdict
from bench.runs import BenchRun, RunInfo
from bench.sheet import Figure

_MARKS = {None: "", True: " ✓", False: " ✗"}
_SIGNS = {"lower": "≤", "higher": "≥"}


@dataclass(frozen=True, slots=True)
class TableRow:
    """Quantities shown in one cell, in this order; the goal is that of the first."""

    label: str
    names: tuple[str, ...]


def _distribution(label: str, name: str) -> TableRow:
    return TableRow(f"{label}, ms, p50 / p90 / p99", tuple(f"{name}.{which}" for which in ("p50", "p90", "p99")))


def _repairs(label: str, name: str, reaction: str) -> tuple[TableRow, ...]:
    return (
        _distribution(f"**{label}**", name),
        _distribution("of which commit → NOTIFY received", f"{name}.heard"),
        _distribution(f"of which NOTIFY received → {reaction}", f"{name}.reaction"),
    )


_IN_FLOORS = "NOTIFY received → repaired, as a multiple of the floor, p50"

ROWS = (
    TableRow(
        "floor, ms: NOTIFY + read one role + ALTER ROLE, p50 / each",
        ("floor.repair", *(f"floor.repair.{part}" for part in ("notify", "read", "alter"))),
    ),
    TableRow("the same, repeated without pause", ("floor.hot",)),
    *_repairs("quiet: drift committed → repaired", "quiet", "repaired"),
    TableRow(_IN_FLOORS, ("quiet.floors",)),
    *_repairs("200 commits/s: drift committed → repaired", "busy", "repaired"),
    TableRow(_IN_FLOORS, ("busy.floors",)),
    *_repairs("quiet: password changed, committed → restored", "password", "restored: Secret read, hashed"),
    TableRow(
        "one round of Poll, ms, p50: nothing was committed / something else was / one role was changed",
        ("poll.nothing", "poll.commit", "poll.change"),
    ),
    TableRow("**idle: PostgreSQL**, % of a core", ("idle.postgres",)),
    TableRow("of which the backend that runs `watch`", ("idle.watch",)),
    TableRow("floor, % of a core: PostgreSQL without a controller", ("floor.idle",)),
    TableRow("idle: `watch` commits per second", ("idle.commits",)),
    TableRow("idle: controller, % of a core", ("idle.controller",)),
    TableRow("objects added and all Ready, s", ("load.ready",)),
    TableRow("**objects posted by 8 clients → all Ready**, s after the last post", ("objects.ready.last",)),
    TableRow("the same, s after the first post", ("objects.ready.first",)),
    TableRow("time to post them, s", ("objects.posting",)),
    TableRow(
        "floor, s, without a controller: the posts alone / each with a status and an Event from a bare client",
        ("floor.posting", "floor.writing"),
    ),
    TableRow("**CPU for one of these objects**, ms: controller", ("objects.cpu",)),
    TableRow("PostgreSQL / API server with etcd", ("objects.cpu.postgres", "objects.cpu.apiserver")),
    TableRow("CPU for one status, ms: the controller's client", ("request.cpu",)),
    TableRow("floor, ms of CPU: the same request through a bare connection", ("floor.request",)),
    TableRow("**PostgreSQL back → drifts of the outage repaired**, s", ("outage.drift",)),
    TableRow("PostgreSQL back → changed objects applied, s", ("outage.spec",)),
    TableRow("**PostgreSQL back → all Ready**, s", ("outage.ready",)),
    TableRow("floor, s: a client connects, reads and alters one role", ("floor.return",)),
    TableRow("controller started → all reconciled, earlier drifts repaired, s", ("restart.repaired",)),
    TableRow("a start until the first request: s of CPU / MiB resident", ("start.cpu", "start.memory")),
    TableRow("floor, s of CPU: Python with asyncio, TLS and JSON", ("floor.python.cpu",)),
    TableRow("**resident memory without objects**, MiB / of which its own", ("empty.memory", "empty.memory.own")),
    TableRow("floor, MiB: Python with asyncio, TLS and JSON", ("floor.python.memory",)),
    TableRow("**resident memory after applying**, MiB", ("loaded.memory",)),
    TableRow("its own above that without objects, MiB", ("loaded.memory.above",)),
    TableRow("**resident memory after a start**, MiB", ("restarted.memory",)),
    TableRow("its own above that without objects, MiB", ("restarted.memory.above",)),
)


def render_markdown(run: BenchRun) -> str:
    """Renders the table under Measured in the README. Rows without figures are omitted."""
    figures = {figure.key: figure for figure in run.figures}
    sizes = sorted({figure.roles for figure in run.figures}, key=lambda roles: roles or 0)
    headings = ["any" if roles is None else f"{roles:,}" for roles in sizes]
    lines = [_line(["roles", "goal", *headings]), _line(["---"] * (2 + len(sizes)))]
    for row in ROWS:
        cells = [[figures[name, roles] for name in row.names if (name, roles) in figures] for roles in sizes]
        if any(cells):
            lines.append(_line([row.label, _goals(cells), *map(_cell, cells)]))
    return "\n".join([f"{describe(run.origin)}.", "", *lines])


def describe(origin: RunInfo) -> str:
    """Describes machine and circumstances in one sentence without its full stop."""
    return (
        f"`{origin.command}` of {origin.controller} ({origin.commit or 'no commit known'}) on {origin.date}, "
        f"{origin.minutes:.0f} min, {origin.repetitions} repetitions (medians): {origin.machine}, "
        f"{origin.stolen:.0f} % CPU steal, Linux {origin.kernel}, PostgreSQL {origin.postgresql}, "
        f"Kubernetes {origin.kubernetes}, Python {origin.python}"
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    return " / ".join(number(figure.value) for figure in figures) + _MARKS[figures[0].met]


def _goals(cells: Sequence[Sequence[Figure]]) -> str:
    firsts = [some[0] for some in cells if some]
    if all(first.goal is None for first in firsts):
        return ""
    texts = ["–" if first.goal is None else f"{first.goal:g}" for first in firsts]
    return f"{_SIGNS[firsts[0].quantity.better]} {texts[0] if len(set(texts)) == 1 else ', '.join(texts)}"


def number(value: float) -> str:
    """Formats about three digits, never with an exponent."""
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def render_list(run: BenchRun) -> str:
    """Renders one line per figure: value, spread, goal, floor."""
    headings = ("figure", "roles", "value", "unit", "noise", "goal", "floor")
    return _align([headings, *map(_listed, run.figures)])


def _listed(figure: Figure) -> tuple[str, ...]:
    sign = _SIGNS[figure.quantity.better]
    return (
        figure.quantity.name,
        _roles(figure),
        number(figure.value),
        figure.quantity.unit,
        "?" if figure.noise is None else number(figure.noise),
        "" if figure.goal is None else f"{sign} {figure.goal:g}{_MARKS[figure.met]}",
        "" if figure.floor is None else number(figure.floor),
    )


def render_comparison(compared: Sequence[FigureComparison], missing: Sequence[Figure]) -> str:
    """Renders the figures, the number of each verdict, and what only the stored run has."""
    headings = ("figure", "roles", "stored", "now", "unit", "ratio", "beside floors", "noise of both", "")
    counts = {verdict: sum(one.verdict is verdict for one in compared) for verdict in Verdict}
    lines = [
        _align([headings, *map(_compared, compared)]),
        "",
        f"{counts[Verdict.WORSE]} worse, {counts[Verdict.BETTER]} better, {counts[Verdict.NOISE]} within noise",
    ]
    if missing:
        lines.append(f"{len(missing)} of the stored figures were not measured")
    return "\n".join(lines)


def _compared(one: FigureComparison) -> tuple[str, ...]:
    return (
        one.new.quantity.name,
        _roles(one.new),
        number(one.old.value),
        number(one.new.value),
        one.new.quantity.unit,
        _ratio(one.ratio),
        _ratio(one.paced),
        number(one.noise),
        one.verdict.value,
    )


def _roles(figure: Figure) -> str:
    return "" if figure.roles is None else f"{figure.roles:,}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} ×"


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns of text, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(_pad, row, widths, range(len(row)))).rstrip() for row in rows)


def _pad(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 or not text[:1].isdigit() else text.rjust(width)
