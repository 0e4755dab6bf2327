"""`python -m bench`: measures the whole controller on this machine, and compares it with a stored run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from bench.comparison import Verdict, compare, missing
from bench.measure import PARTS, Options, measure
from bench.runs import BadRun, BenchRun
from bench.table import describe, render_comparison, render_list, render_markdown
from pgrole_controller.local.display import Display

_REGRESSION = 1


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(sorted({int(part) for part in text.split(",")}))
    if sizes[0] < 1:
        raise ValueError
    return sizes


def _parts(text: str) -> frozenset[str]:
    parts = frozenset(part for part in text.split(",") if part)
    if not parts or not parts <= frozenset(PARTS):
        raise ValueError
    return parts


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _stored(text: str) -> BenchRun:
    try:
        return BenchRun.load(Path(text))
    except BadRun as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench", description="Measures the controller on this machine.")
    parser.add_argument("--sizes", type=_sizes, default="10,1000,10000", help="how many roles are declared")
    parser.add_argument("--drifts", type=_count, default=60, help="how many drifts in each repetition, quiet and busy")
    parser.add_argument("--idle-seconds", type=float, default=15.0, help="length of each idle window in seconds")
    parser.add_argument(
        "--repetitions", type=_count, default=2, help="repetitions of each measurement; their spread is its noise"
    )
    parser.add_argument("--parts", type=_parts, default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--from", type=_stored, dest="stored", metavar="FILE", help="show this stored run instead of measuring"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table of the README, not the list")
    parser.add_argument("--save", type=Path, metavar="FILE", help="store the run there, as JSON, after each part")
    parser.add_argument("--compare", type=_stored, metavar="FILE", help="show the figures beside those of a stored run")
    parser.add_argument(
        "--fail-on-regression", action="store_true", help=f"with --compare: exit code {_REGRESSION} when one is worse"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.fail_on_regression and given.compare is None:
        parser.error("--fail-on-regression needs --compare")
    options = Options(given.sizes, given.drifts, given.idle_seconds, given.repetitions, given.parts)

    def keep(run: BenchRun) -> None:
        if given.save is not None:
            run.save(given.save)

    run = given.stored or anyio.run(measure, options, Display(sys.stderr), arguments, keep)
    keep(run)
    print(render_markdown(run) if given.markdown else f"{describe(run.origin)}\n\n{render_list(run)}")
    return 0 if given.compare is None else _compare(given.compare, run, fail=given.fail_on_regression)


def _compare(stored: BenchRun, run: BenchRun, *, fail: bool) -> int:
    compared = compare(stored.figures, run.figures)
    print(f"\nBeside {describe(stored.origin)}\n")
    for difference in run.origin.differences(stored.origin):
        print(f"not the same: {difference}")
    print(render_comparison(compared, missing(stored.figures, run.figures)))
    return _REGRESSION if fail and any(one.verdict is Verdict.WORSE for one in compared) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
