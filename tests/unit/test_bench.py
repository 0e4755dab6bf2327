"""What `python -m bench` computes from its measurements: medians, noise, goals, ratios, verdicts, files, exit codes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.comparison import FigureComparison, Verdict, compare, missing
from bench.quantities import QUANTITIES
from bench.repair import Floor
from bench.runs import BadRun, BenchRun, RunInfo
from bench.sheet import Figure, Sheet
from bench.table import ROWS, number, render_comparison, render_list, render_markdown

ORIGIN = RunInfo(
    date="2026-11-22",
    command="python -m bench",
    minutes=12.3,
    controller="0.3.0",
    commit="0123456789ab",
    machine="2 cores of a kind, 24 GiB",
    kernel="6.1",
    python="3.11.7",
    postgresql="18.4",
    kubernetes="1.36.3",
    repetitions=2,
    stolen=0.4,
)


def figure(name: str, *values: float, roles: int | None = None, floor: float | None = None) -> Figure:
    quantity = QUANTITIES[name]
    return Figure(quantity, roles, values, quantity.goal(roles), floor)


def judged(old: Figure, new: Figure) -> FigureComparison:
    (found,) = compare([old], [new])
    return found


def test_every_floor_is_a_quantity_of_the_same_unit() -> None:
    known = {
        name: (quantity.unit, QUANTITIES[quantity.floor].unit)
        for name, quantity in QUANTITIES.items()
        if quantity.floor is not None
    }
    assert known
    for name, (unit, of_floor) in known.items():
        assert unit == of_floor, name


@pytest.mark.parametrize(("roles", "goal"), [(10, 8.0), (1_000, 8.0), (1_001, 12.0), (10_000, 12.0), (10_001, None)])
def test_a_goal_holds_up_to_its_number_of_roles(roles: int, goal: float | None) -> None:
    assert QUANTITIES["quiet.p50"].goal(roles) == goal


def test_a_goal_without_roles_applies_only_without_roles() -> None:
    assert QUANTITIES["empty.memory"].goal(None) == 45.0
    assert QUANTITIES["empty.memory"].goal(10) is None
    assert QUANTITIES["quiet.p50"].goal(None) is None


def test_a_figure_is_the_median_of_its_repetitions_and_its_noise_is_their_spread() -> None:
    assert (figure("load.ready", 3.0, 1.0).value, figure("load.ready", 3.0, 1.0).noise) == (2.0, 2.0)
    assert (figure("load.ready", 3.0, 1.0, 1.5).value, figure("load.ready", 3.0, 1.0, 1.5).noise) == (1.5, 2.0)
    assert figure("load.ready", 3.0).noise is None


def test_a_goal_is_an_upper_or_a_lower_bound_depending_on_the_quantity() -> None:
    assert figure("quiet.p50", 8.0, roles=10).met is True
    assert figure("quiet.p50", 8.1, roles=10).met is False
    assert figure("quiet.p90", 8.1, roles=10).met is None
    higher = replace(QUANTITIES["quiet.p50"], better="higher")
    assert Figure(higher, 10, (8.1,), goal=8.0).met is True
    assert Figure(higher, 10, (7.9,), goal=8.0).met is False


def test_the_sheet_groups_repetitions_and_adds_the_floor_for_the_same_number_of_roles() -> None:
    sheet = Sheet()
    for roles, total in ((10, 1.0), (1_000, 2.0)):
        for value in (5.0, 7.0):
            sheet.note("quiet.p50", value, roles)
        sheet.note_floor(Floor(total / 2, total / 4, total / 4), Floor(0.1, 0.1, 0.1), roles)
    sheet.note("floor.request", 0.5)
    sheet.note("objects.cpu", 4.0, 1_000)
    found = {one.key: one for one in sheet.figures()}
    assert found["quiet.p50", 10].values == (5.0, 7.0)
    assert [found["quiet.p50", roles].floor for roles in (10, 1_000)] == [1.0, 2.0]
    assert found["floor.hot", 10].value == pytest.approx(0.3)
    assert found["objects.cpu", 1_000].floor == 0.5  # measured without a number of roles
    assert found["floor.request", None].floor is None


def test_the_sheet_rejects_an_unknown_quantity() -> None:
    sheet = Sheet()
    with pytest.raises(KeyError):
        sheet.note("quite.p50", 1.0)
    assert sheet.figures() == ()


def test_a_difference_beyond_the_noise_of_both_runs_is_judged() -> None:
    """The stored repetitions are 1 s apart, the new ones 0.5 s: together 1.5 s."""
    old = figure("load.ready", 9.5, 10.5, roles=10)
    assert judged(old, figure("load.ready", 11.2, 11.7, roles=10)).verdict is Verdict.NOISE
    assert judged(old, figure("load.ready", 11.3, 11.8, roles=10)).verdict is Verdict.WORSE
    assert judged(old, figure("load.ready", 8.3, 8.8, roles=10)).verdict is Verdict.NOISE
    assert judged(old, figure("load.ready", 8.2, 8.7, roles=10)).verdict is Verdict.BETTER


def test_ratio_and_noise_are_computed_from_both_runs() -> None:
    found = judged(figure("load.ready", 9.5, 10.5), figure("load.ready", 14.0, 16.0))
    assert found.ratio == pytest.approx(1.5)
    assert found.noise == pytest.approx(3.0)
    assert found.paced is None


def test_a_difference_within_the_margin_is_noise_even_if_repetitions_agree() -> None:
    margin = QUANTITIES["load.ready"].margin
    old = figure("load.ready", 10.0, 10.0)
    inside, beyond = 10 * (1 + margin) - 0.01, 10 * (1 + margin) + 0.01
    assert judged(old, figure("load.ready", inside, inside)).verdict is Verdict.NOISE
    assert judged(old, figure("load.ready", beyond, beyond)).verdict is Verdict.WORSE


def test_a_single_repetition_has_the_assumed_noise() -> None:
    found = judged(figure("load.ready", 10.0), figure("load.ready", 12.0))
    assert found.noise == pytest.approx(2.2)
    assert found.verdict is Verdict.NOISE
    assert judged(figure("load.ready", 10.0), figure("load.ready", 12.5)).verdict is Verdict.WORSE


def test_a_difference_below_the_resolution_is_noise_at_any_ratio() -> None:
    found = judged(figure("idle.controller", 0.02, 0.02, roles=10), figure("idle.controller", 0.08, 0.08, roles=10))
    assert found.ratio == pytest.approx(4.0)
    assert found.verdict is Verdict.NOISE


def test_a_stored_zero_has_no_ratio_but_is_judged() -> None:
    old = figure("idle.controller", 0.0, 0.0, roles=10)
    assert judged(old, figure("idle.controller", 0.05, 0.05, roles=10)).verdict is Verdict.NOISE
    worse = judged(old, figure("idle.controller", 0.5, 0.5, roles=10))
    assert (worse.ratio, worse.verdict) == (None, Verdict.WORSE)


def test_a_slower_machine_is_no_regression() -> None:
    old = figure("quiet.p50", 8.0, 8.2, roles=10, floor=1.0)
    slower = judged(old, figure("quiet.p50", 12.0, 12.2, roles=10, floor=1.5))
    assert slower.verdict is Verdict.NOISE
    assert slower.ratio == pytest.approx(1.494, abs=0.001)
    assert slower.paced == pytest.approx(0.996, abs=0.001)
    assert judged(old, figure("quiet.p50", 12.0, 12.2, roles=10, floor=1.0)).verdict is Verdict.WORSE


def test_a_change_of_the_floor_alone_is_neither_regression_nor_improvement() -> None:
    old = figure("quiet.p50", 8.0, 8.2, roles=10, floor=1.0)
    assert judged(old, replace(old, floor=0.5)).verdict is Verdict.NOISE
    assert judged(old, replace(old, floor=2.0)).verdict is Verdict.NOISE


def test_a_floor_that_does_not_measure_machine_speed_excuses_nothing() -> None:
    """An idle server uses almost no CPU time, and the little it uses varies."""
    old = figure("idle.postgres", 1.0, 1.0, roles=10, floor=0.02)
    found = judged(old, figure("idle.postgres", 2.0, 2.0, roles=10, floor=0.04))
    assert (found.paced, found.verdict) == (None, Verdict.WORSE)


def test_floors_are_compared_and_never_judged() -> None:
    found = judged(figure("floor.request", 1.0, 1.0), figure("floor.request", 3.0, 3.0))
    assert found.ratio == pytest.approx(3.0)
    assert found.verdict is Verdict.FLOOR


def test_more_is_worse_only_where_less_is_better() -> None:
    higher = replace(QUANTITIES["load.ready"], better="higher")
    old, more = Figure(higher, None, (10.0, 10.0)), Figure(higher, None, (20.0, 20.0))
    assert judged(old, more).verdict is Verdict.BETTER
    assert judged(more, old).verdict is Verdict.WORSE


def test_a_stored_figure_that_was_not_measured_again_is_listed_and_not_compared() -> None:
    old = [figure("load.ready", 1.0, roles=10), figure("start.cpu", 1.0)]
    new = [figure("load.ready", 1.0, roles=100), figure("start.cpu", 1.0)]
    assert [one.new.key for one in compare(old, new)] == [("start.cpu", None)]
    assert [one.key for one in missing(old, new)] == [("load.ready", 10)]


RUN = BenchRun(
    ORIGIN,
    (
        figure("quiet.p50", 6.5, 6.7, roles=10, floor=1.03),
        figure("quiet.p50", 14.0, 14.2, roles=10_000, floor=1.31),
        figure("quiet.p90", 8.7, 8.7, roles=10, floor=1.03),
        figure("quiet.p90", 17.9, 17.9, roles=10_000, floor=1.31),
        figure("empty.memory", 44.0, 44.4, floor=20.0),
    ),
)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    RUN.save(path)
    return path


def test_a_stored_run_loads_unchanged(stored: Path) -> None:
    assert BenchRun.load(stored) == RUN


def test_a_stored_figure_is_self_describing(stored: Path) -> None:
    first: dict[str, Any] = json.loads(stored.read_text())["figures"][0]
    assert first == {
        "name": "quiet.p50",
        "roles": 10,
        "value": 6.6,
        "unit": "ms",
        "better": "lower",
        "goal": 8.0,
        "floor": 1.03,
        "values": [6.5, 6.7],
    }


def test_a_stored_quantity_that_no_longer_exists_is_skipped(stored: Path) -> None:
    stored.write_text(stored.read_text().replace('"empty.memory"', '"of.old"'))
    assert len(BenchRun.load(stored).figures) == len(RUN.figures) - 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"commit"', '"comit"'),
        lambda text: text.replace("[44.0, 44.4]", "[]"),
        lambda text: text.replace("[44.0, 44.4]", "44.0"),
        lambda _: "[]",
    ],
)
def test_an_invalid_stored_run_is_rejected_by_file_name(stored: Path, spoil: Callable[[str], str]) -> None:
    before = stored.read_text()
    stored.write_text(spoil(before))
    assert stored.read_text() != before
    with pytest.raises(BadRun, match=r"run\.json"):
        BenchRun.load(stored)


def test_the_table_has_a_column_for_goals_and_one_for_each_size() -> None:
    lines = render_markdown(RUN).splitlines()
    assert lines[0].startswith("`python -m bench` of 0.3.0 (0123456789ab) on 2026-11-22, 12 min, 2 repetitions")
    assert lines[2:] == [
        "| roles | goal | any | 10 | 10,000 |",
        "| --- | --- | --- | --- | --- |",
        "| **quiet: drift committed → repaired**, ms, p50 / p90 / p99 | ≤ 8, 12 |  | 6.60 / 8.70 ✓ | 14.1 / 17.9 ✗ |",
        "| **resident memory without objects**, MiB / of which its own | ≤ 45 | 44.2 ✓ |  |  |",
    ]


def test_every_quantity_has_its_place_in_the_table() -> None:
    shown = {name for row in ROWS for name in row.names}
    unplaced = [name for name in QUANTITIES if name not in shown]
    assert unplaced == []


def test_the_list_has_value_noise_goal_and_floor() -> None:
    lines = render_list(RUN).splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["figure", "roles", "value", "unit", "noise", "goal", "floor"],
        ["quiet.p50", "10", "6.60", "ms", "0.20", "≤", "8", "✓", "1.03"],
    ]


def test_a_comparison_ends_with_a_summary() -> None:
    new = [figure("quiet.p50", 9.0, 9.2, roles=10, floor=1.03), figure("empty.memory", 30.0, 30.4)]
    text = render_comparison(compare(RUN.figures, new), missing(RUN.figures, new)).splitlines()
    assert text[1].split()[:3] == ["quiet.p50", "10", "6.60"]
    assert text[1].endswith("WORSE")
    assert text[-2:] == ["1 worse, 1 better, 0 within noise", "3 of the stored figures were not measured"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.054, "0.05"), (6.5, "6.50"), (14.1, "14.1"), (123.4, "123"), (1234.5, "1,234")],
)
def test_numbers_are_short_and_have_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_a_run_like_the_stored_one_is_no_regression(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", str(stored), "--compare", str(stored), "--fail-on-regression"]) == 0
    assert "0 worse, 0 better, 5 within noise" in capsys.readouterr().out


def test_a_regression_sets_the_exit_code_only_on_request(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse = replace(RUN, figures=(figure("empty.memory", 90.0, 90.4, floor=20.0),))
    path = stored.with_name("worse.json")
    worse.save(path)
    arguments = ["--from", str(path), "--compare", str(stored)]
    assert main(arguments) == 0
    assert main([*arguments, "--fail-on-regression"]) == 1
    assert main(["--from", str(stored), "--compare", str(path), "--fail-on-regression"]) == 0
    assert "WORSE" in capsys.readouterr().out


def test_differences_between_the_environments_are_printed(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored.with_name("elsewhere.json")
    replace(RUN, origin=replace(ORIGIN, python="3.12.1")).save(path)
    main(["--from", str(path), "--compare", str(stored)])
    assert "not the same: python: 3.12.1, was 3.11.7" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fail-on-regression"],
        ["--parts", "quiet,loud"],
        ["--parts", ""],
        ["--sizes", "0"],
        ["--repetitions", "0"],
        ["--compare", "/nowhere.json"],
    ],
)
def test_invalid_arguments_are_rejected_before_anything_is_measured(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
