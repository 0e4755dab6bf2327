"""Seeds each fault of the list in a copy of the tree and runs the tests that must find it: `make mutations`.

Ends with 1 when a fault is not found or no longer applies.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.faults import LARGE_LINES, ROOT, Fault, NotApplicable, apply, count_by_large_module, load, locate

#: For the tests of one fault; a test that waits for longer has not found it.
DEADLINE_SECONDS = 600.0

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".tools", ".dev", "dist", ".*_cache", ".hypothesis", "*.egg-info")
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FaultRun:
    fault: Fault
    verdict: str
    detail: str
    seconds: float
    well: bool


def run(fault: Fault, *, control: bool) -> FaultRun:
    """Runs the tests that must find the fault; `control`: without the fault, so that they must pass."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
        try:
            if not control:
                apply(fault, tree)
        except NotApplicable as error:
            return FaultRun(fault, "DOES NOT APPLY", str(error), 0.0, well=False)
        code, output = _pytest(fault, tree)
    failed = _FAILURE.search(output)
    last = output.strip().splitlines()[-1] if output.strip() else ""
    seconds = time.monotonic() - began
    if code == 0:
        return FaultRun(fault, "passes" if control else "NOT FOUND", last, seconds, well=control)
    if code == 1:
        return FaultRun(
            fault, "FAILS" if control else "found", failed.group(1) if failed else last, seconds, not control
        )
    return FaultRun(fault, "NOT RUN", f"pytest ended with {code}: {last}", seconds, well=False)


def _pytest(fault: Fault, tree: Path) -> tuple[int, str]:
    """Returns pytest's exit code (-1 after the deadline) and its output."""
    tier = [] if fault.slow else ["-m", "not slow"]
    options = ["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tier, *fault.found_by],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        return -1, f"not ended after {DEADLINE_SECONDS:.0f} s"
    return process.returncode, output


def check(faults: list[Fault]) -> int:
    """Prints which faults no longer apply or have moved, and which large modules have too few."""
    lost = 0
    for fault in faults:
        try:
            place = str(locate(fault))
        except NotApplicable as error:
            lost += 1
            print(f"{fault.number:3} DOES NOT APPLY: {error}\n    {fault.line}")
            continue
        if place != fault.file:
            print(f"{fault.number:3} moved from {fault.file} to {place}")
    print(f"{len(faults) - lost} of {len(faults)} faults apply, {sum(fault.slow for fault in faults)} need a slow test")
    few = 0
    if not lost:
        for place, count in count_by_large_module(faults).items():
            if count < 2:
                few += 1
                print(f"{place} has {LARGE_LINES} lines or more, and {count} of the faults: at least 2 belong there")
    return 1 if lost or few else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", metavar="N,M", help="numbers of the faults to seed, or parts of their files' paths")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: 2)")
    parser.add_argument("--check", action="store_true", help="run no test, and say which faults no longer apply")
    parser.add_argument("--control", action="store_true", help="seed nothing: all the tests must pass")
    parser.add_argument("--list", action="store_true", help="print the faults")
    arguments = parser.parse_args()
    chosen = (arguments.only or "").split(",")
    faults = [
        one
        for one in load()
        if any(str(one.number) == each or (each in one.file and not each.isdigit()) for each in chosen)
    ]
    if arguments.check:
        return check(faults)
    if arguments.list:
        for fault in faults:
            print(f"{fault.number:3} {fault.file}: {fault.breaks}")
        return 0
    began = time.monotonic()
    runs: list[FaultRun] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for each in pool.map(lambda fault: run(fault, control=arguments.control), faults):
            runs.append(each)
            print(
                f"{each.fault.number:3} {each.verdict:14} {each.seconds:6.1f} s  {each.fault.file}: {each.fault.breaks}"
            )
            print(f"    {each.detail}", flush=True)
    well = sum(each.well for each in runs)
    print(f"{well} of {len(runs)} {'pass' if arguments.control else 'found'} in {time.monotonic() - began:.0f} s")
    return 0 if well == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
