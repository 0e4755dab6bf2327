"""Runs the suite with each version of PostgreSQL, and prints a table: `make test-matrix`.

Tests without PostgreSQL are one more row (`none`) and run once. Fails if anything failed, or nothing ran.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.servers import VERSIONS, missing_docker, read_choice

ROOT = Path(__file__).parent.parent
REST = "none"


@dataclass(frozen=True, slots=True)
class VersionResult:
    """Test results with one PostgreSQL (`of`: in the notation of --postgres, or REST)."""

    of: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    code: int

    @property
    def well(self) -> bool:
        return self.code == 0 and self.failed == 0


def run(of: str, arguments: Sequence[str]) -> VersionResult:
    """Runs pytest and passes its output through."""
    chosen = ["-m", "not postgres"] if of == REST else ["-m", "postgres", "--postgres", of]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *chosen, f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        return read(of, code, report.read_text(encoding="utf-8") if report.exists() else None)


def read(of: str, code: int, report: str | None) -> VersionResult:
    """Interprets pytest's exit code and report (JUnit XML; None: missing)."""
    suites = [] if report is None else list(ElementTree.fromstring(report).iter("testsuite"))

    def total(key: str) -> int:
        return sum(int(suite.get(key, 0)) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    return VersionResult(of, total("tests") - failed - skipped, failed, skipped, seconds, code)


def table(results: Sequence[VersionResult]) -> str:
    lines = [f"{'PostgreSQL':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for result in results:
        end = "" if result.well else f"   FAILED (pytest ended with {result.code})"
        lines.append(
            f"{result.of:<12}{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds:>9.0f}{end}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """`[none|VERSION|docker:VERSION …] [-- PYTEST ARGUMENTS]`; by default everything on this machine.

    Exit codes: 0 success, or Docker is required and missing; 1 failures; 2 no such version.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    named, passed_on = arguments[:split], arguments[split + 1 :]
    results: list[VersionResult] = []
    try:
        docker = any(of != REST and read_choice(of).docker for of in named)
    except pytest.UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if docker and (why := missing_docker()):
        sys.stdout.write(f"skipped: {why}\n")
        return 0
    for of in named or (REST, *map(str, VERSIONS)):
        sys.stdout.write(f"\n== PostgreSQL: {of}\n")
        sys.stdout.flush()
        results.append(run(of, passed_on))
    sys.stdout.write(f"\n{table(results)}\n")
    return 0 if all(result.well for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
