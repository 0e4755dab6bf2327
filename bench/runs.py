"""A run: its figures and their circumstances, stored as JSON for comparison with later runs."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.quantities import QUANTITIES
from bench.sheet import Figure
from pgrole_controller import __version__

_FORMAT = 1
_MEASURED = ("pgrole_controller", "sql", "crds", "bench")


class BadRun(Exception):
    """The file is not a stored run; the message names it."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """`commit` ends in `+` if files differed from it, and is empty without git. `minutes`: duration.

    `stolen`: percent of CPU time that the machine's host gave to others meanwhile.
    """

    date: str
    command: str
    minutes: float
    controller: str
    commit: str
    machine: str
    kernel: str
    python: str
    postgresql: str
    kubernetes: str
    repetitions: int
    stolen: float

    def differences(self, other: "RunInfo") -> tuple[str, ...]:
        """Describes differences between the circumstances that may change figures without a change of the project."""
        names = ("machine", "kernel", "python", "postgresql", "kubernetes")
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return tuple(f"{name}: {ours}, was {theirs}" for name, ours, theirs in pairs if ours != theirs)


@dataclass(frozen=True, slots=True)
class BenchRun:
    origin: RunInfo
    figures: tuple[Figure, ...]

    def save(self, path: Path) -> None:
        figures = [_as_json(figure) for figure in self.figures]
        lines = ",\n".join(f"    {json.dumps(figure, ensure_ascii=False)}" for figure in figures)
        head = json.dumps({"format": _FORMAT, **asdict(self.origin)}, ensure_ascii=False, indent=2).removesuffix("\n}")
        path.write_text(f'{head},\n  "figures": [\n{lines}\n  ]\n}}\n', encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "BenchRun":
        """Loads a run. Raises BadRun. Drops quantities that are no longer measured."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["format"] != _FORMAT:
                raise BadRun(f"{path} has format {stored['format']}, not {_FORMAT}")
            origin = RunInfo(**{name: stored[name] for name in RunInfo.__dataclass_fields__})
            figures = tuple(_of_json(one) for one in stored["figures"] if one["name"] in QUANTITIES)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadRun(f"{path} is no stored run: {type(error).__name__}: {error}") from error
        return cls(origin, figures)


def _as_json(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.quantity.name,
        "roles": figure.roles,
        "value": _short(figure.value),
        "unit": figure.quantity.unit,
        "better": figure.quantity.better,
        "goal": figure.goal,
        "floor": None if figure.floor is None else _short(figure.floor),
        "values": [_short(value) for value in figure.values],
    }


def _of_json(one: dict[str, Any]) -> Figure:
    values = tuple(float(value) for value in one["values"])
    if not values:
        raise ValueError(f"{one['name']} has no value")
    return Figure(QUANTITIES[one["name"]], one["roles"], values, one["goal"], one["floor"])


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def originate(
    *, command: str, seconds: float, postgresql: str, kubernetes: str, repetitions: int, stolen: float
) -> RunInfo:
    """Describes a run that has just ended here."""
    return RunInfo(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command=command,
        minutes=round(seconds / 60, 1),
        controller=__version__,
        commit=_commit(),
        machine=f"{os.cpu_count()} cores {_processor()}, {_memory():.0f} GiB",
        kernel=platform.release(),
        python=platform.python_version(),
        postgresql=postgresql,
        kubernetes=kubernetes.removeprefix("v"),
        repetitions=repetitions,
        stolen=round(stolen, 1),
    )


def processors_time() -> tuple[int, int]:
    """Returns CPU ticks of all processors so far, and those that the host gave to others."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks: Sequence[int] = [int(field) for field in first.split()[1:9]]
    return sum(ticks), ticks[7]


def _commit() -> str:
    folder = Path(__file__).parent.parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git(folder, "status", "--porcelain", "--", *_MEASURED) else "")


def _git(folder: Path, *arguments: str) -> str:
    """Returns git's output; empty without git or a repository."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.processor()


def _memory() -> float:
    """In GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
