"""core/parameters: declared values and those stored by PostgreSQL, in one form."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.diff import SetParameter, diff
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.parameters import ALL, UNREADABLE, canonical, elements, join, read_settings
from pgrole_controller.core.role import Role
from tests.cpu_time import within_a_callback
from tests.roles import names, parameters


@given(st.lists(names(), min_size=1))
def test_a_joined_list_is_read_back_unchanged(some: list[str]) -> None:
    assert elements(join(some)) == tuple(some)


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("app, public", "app, public"),
        (" App ,PUBLIC ", "app, public"),
        ('"$user", public', '"$user", public'),
        ('"App"', '"App"'),
        ("", '""'),
        ('"a ""quoted"" name"', '"a ""quoted"" name"'),
        ('"a""b"', 'a"b'),
        ("Ä", "Ä"),
    ],
)
def test_a_declared_search_path_equals_its_form_stored_by_postgresql(declared: str, stored: str) -> None:
    assert canonical({"search_path": declared}) == read_settings([f"search_path={stored}"])


def test_only_ascii_letters_are_folded_to_lower_case() -> None:
    """PostgreSQL folds no others in UTF-8: KELVIN SIGN is not k, and only six characters are spaces."""
    assert canonical({"search_path": "Ärger"}) == (("search_path", '"Ärger"'),)
    assert canonical({"search_path": "a\N{NO-BREAK SPACE}"}) == (("search_path", '"a\N{NO-BREAK SPACE}"'),)
    assert read_settings(["app.\N{KELVIN SIGN}=evil", "app.k=good"]) == (
        ("app.k", "good"),
        ("app.\N{KELVIN SIGN}", "evil"),
    )


def test_names_are_compared_case_insensitively_and_values_exactly() -> None:
    assert canonical({"DateStyle": "ISO"}) == read_settings(["DateStyle=ISO"])
    assert canonical({"work_mem": "64MB"}) != canonical({"work_mem": "65536kB"})


def test_a_value_may_contain_equals_signs() -> None:
    assert read_settings(["app.x=a=b=c"]) == (("app.x", "a=b=c"),)


@pytest.mark.parametrize("value", ['"open', "a b", "a,,b", "a,", 'a"b', '"a" "b"', ",", "a\vb", '"a"b'])
def test_an_unreadable_list_is_refused_by_name(value: str) -> None:
    with pytest.raises(Refused, match="search_path"):
        canonical({"search_path": value})


@pytest.mark.parametrize("value", ['"open', "a b", "a,,b", "a,", '"a" "b"', ",", "a\vb", "\udce9, x y"])
def test_an_unreadable_stored_list_differs_from_every_declared_one(value: str) -> None:
    assert read_settings([f"local_preload_libraries={value}"]) == (("local_preload_libraries", UNREADABLE),)


@given(parameters(), st.lists(st.text() | st.binary().map(lambda raw: raw.decode(errors="surrogateescape"))))
def test_reading_never_raises_and_unreadable_values_are_corrected(
    declared: tuple[tuple[str, str], ...], some: list[str]
) -> None:
    held = read_settings(some)
    changes = diff(Role("r", parameters=declared), Role("r", parameters=held))
    assert {change.name for change in changes if isinstance(change, SetParameter)} >= {
        name for name, value in held if value == UNREADABLE
    }


@pytest.mark.parametrize(
    "settings",
    [
        None,
        ["app.X=evil", "app.x=good"],
        ["app.x=good", "APP.x=evil"],
        ["app.X=evil"],
        ["app.\udce9=1"],
        [f"app.{'x' * 64}=1"],
        [f"app.{'y.' * 20_000}z=1"],
        ["=1"],
        ["no equals sign, no parameter"],
        ["app..x=1"],
        ['"app".x=1'],
    ],
)
def test_all_settings_are_reset_if_one_cannot_be_reset_by_name(settings: list[str] | None) -> None:
    assert read_settings(settings and ["work_mem=64MB", *settings]) == ((ALL, UNREADABLE),)
    desired = Role("r", parameters=(("work_mem", "64MB"),))
    changes = diff(desired, Role("r", parameters=read_settings(settings)))
    assert changes == (SetParameter("r", None, ALL, None), SetParameter("r", None, "work_mem", "64MB"))


@pytest.mark.parametrize(
    "value",
    [
        "a," * 5_000_000 + "a",
        '"' * 10_000_001,
        '"a"' * 3_000_000,
        '""' * 8_191 + '"',
        '"' + '""' * 8_190,
        " " * 16_000 + '"',
        "a" + " " * 16_000 + '"',
        '"a",' * 4_000,
    ],
)
def test_a_value_is_read_in_linear_time(value: str) -> None:
    with within_a_callback():
        assert read_settings([f"search_path={value}"])[0][0] == "search_path"


@pytest.mark.parametrize(
    "value", ["a," * 100_000 + "a", '"' * 200_001, '"a"' * 100_000, " " * 200_000, '"' + '""' * 100_000]
)
def test_a_list_is_parsed_in_linear_time(value: str) -> None:
    with within_a_callback(callbacks=4), contextlib.suppress(ValueError):  # it may be invalid
        elements(value, folding=True)
