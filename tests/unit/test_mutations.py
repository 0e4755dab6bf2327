"""The seeded faults match the code, so that they can be run at any time."""

import re

from tests.mutations.faults import ROOT, Fault, NotApplicable, count_by_large_module, load, locate

FAULTS = load()


def problem(fault: Fault) -> str:
    """Returns why a fault does not apply exactly once, or does not change one line; empty if it does."""
    try:
        locate(fault)
    except NotApplicable as error:
        return str(error)
    before, after = fault.line.split("\n"), fault.replaced_by.split("\n")
    changed = sum(one != other for one, other in zip(before, after, strict=False))
    return "" if (len(before), changed) == (len(after), 1) else "it does not change one line"


def missing_tests(fault: Fault) -> list[str]:
    def is_missing(place: str) -> bool:
        file, *names = re.sub(r"\[.*", "", place).split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        return not all(re.search(rf"^\s*(async def|def|class) {name}\b", text, re.MULTILINE) for name in names)

    return [place for place in fault.found_by if is_missing(place)]


def test_each_fault_applies_exactly_once_and_changes_one_line() -> None:
    assert {fault.number: found for fault in FAULTS if (found := problem(fault))} == {}


def test_the_tests_that_find_a_fault_exist() -> None:
    assert [fault.number for fault in FAULTS if not fault.found_by] == []
    assert {fault.number: found for fault in FAULTS if (found := missing_tests(fault))} == {}


def test_make_test_finds_all_but_two_of_the_faults() -> None:
    assert len(FAULTS) >= 40
    assert sum(fault.slow for fault in FAULTS) <= 2


def test_each_large_module_has_two_faults() -> None:
    assert [module for module, count in count_by_large_module(FAULTS).items() if count < 2] == []
