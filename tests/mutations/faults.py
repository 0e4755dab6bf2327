"""The list of seeded faults, `faults.toml`, and where each of them applies."""

import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIST = Path(__file__).parent / "faults.toml"

#: A module of this many lines or more has at least two faults in the list.
LARGE_LINES = 300


@dataclass(frozen=True, slots=True)
class Fault:
    """`line` is a fragment that exactly one file of the product contains, exactly once; `replaced_by` breaks it.

    `found_by` are arguments for pytest. They are in `make test`, except where `slow`.
    """

    number: int
    file: str
    line: str
    replaced_by: str
    breaks: str
    found_by: tuple[str, ...]
    slow: bool = False


class NotApplicable(Exception):
    """The code has changed, so the list must be updated."""


def load() -> list[Fault]:
    """Returns the committed list, numbered from 1."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["fault"]
    return [
        Fault(number, **{**entry, "found_by": tuple(entry["found_by"])})
        for number, entry in enumerate(entries, start=1)
    ]


def locate(fault: Fault, root: Path = ROOT) -> Path:
    """Returns the file, relative to `root`, that contains the line: the one in the list, or the one it was moved to.

    Raises NotApplicable unless the line exists exactly once.
    """
    expected = root / fault.file
    count = expected.read_text(encoding="utf-8").count(fault.line) if expected.exists() else 0
    if count == 1:
        return Path(fault.file)
    if count > 1:
        raise NotApplicable(f"the line exists {count} times in {fault.file}")
    found = [path for path in _sources(root) if fault.line in path.read_text(encoding="utf-8")]
    if len(found) != 1 or found[0].read_text(encoding="utf-8").count(fault.line) != 1:
        where = ", ".join(str(path.relative_to(root)) for path in found) or "no file"
        raise NotApplicable(f"the line is not in {fault.file}, and not exactly once elsewhere: found in {where}")
    return found[0].relative_to(root)


def apply(fault: Fault, root: Path) -> None:
    """Breaks the tree at `root`. Raises NotApplicable."""
    path = root / locate(fault, root)
    path.write_text(path.read_text(encoding="utf-8").replace(fault.line, fault.replaced_by), encoding="utf-8")


def count_by_large_module(faults: list[Fault], root: Path = ROOT) -> dict[str, int]:
    """Returns the number of faults of each module of at least LARGE_LINES lines, by path. Raises NotApplicable."""
    places = Counter(locate(fault, root) for fault in faults)
    return {
        str(path.relative_to(root)): places[path.relative_to(root)]
        for path in _sources(root)
        if len(path.read_text(encoding="utf-8").splitlines()) >= LARGE_LINES
    }


def _sources(root: Path) -> list[Path]:
    return sorted([*(root / "pgrole_controller").rglob("*.py"), *(root / "sql").rglob("*.sql")])
