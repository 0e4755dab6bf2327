"""The seeded faults match the code, so that they can be run at any time."""

import re

import pytest

from tests.mutations.faults import ROOT, Fault, count_by_large_module, load, locate

FAULTS = load()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.file}")
def test_a_fault_applies_exactly_once_and_changes_one_line(fault: Fault) -> None:
    locate(fault)
    before, after = fault.line.split("\n"), fault.replaced_by.split("\n")
    assert len(before) == len(after)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.file}")
def test_the_tests_that_find_a_fault_exist(fault: Fault) -> None:
    assert fault.found_by
    for place in fault.found_by:
        file, *names = re.sub(r"\[.*", "", place).split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(re.search(rf"^\s*(async def|def|class) {name}\b", text, re.MULTILINE) for name in names), place


def test_make_test_finds_all_but_two_of_the_faults() -> None:
    assert len(FAULTS) >= 40
    assert sum(fault.slow for fault in FAULTS) <= 2


def test_each_large_module_has_two_faults() -> None:
    assert [module for module, count in count_by_large_module(FAULTS).items() if count < 2] == []
