"""core/parameters: what is declared and what PostgreSQL stores, in one form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.errors import Refused
from pgrole_controller.core.parameters import canonical, elements, join, read_settings
from tests.roles import names


@given(st.lists(names(), min_size=1))
def test_what_is_joined_is_read_as_it_was(some: list[str]) -> None:
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
    ],
)
def test_a_declared_search_path_equals_what_postgresql_stores_of_it(declared: str, stored: str) -> None:
    assert canonical({"search_path": declared}) == read_settings([f"search_path={stored}"])


def test_names_are_compared_without_case_and_values_as_they_are() -> None:
    assert canonical({"DateStyle": "ISO"}) == read_settings(["datestyle=ISO"])
    assert canonical({"work_mem": "64MB"}) != canonical({"work_mem": "65536kB"})


def test_a_value_may_contain_equals_signs() -> None:
    assert read_settings(["app.x=a=b=c"]) == (("app.x", "a=b=c"),)


@pytest.mark.parametrize("value", ['"open', "a b", "a,,b", "a,", 'a"b', '"a" "b"', ","])
def test_a_list_that_cannot_be_read_is_refused_by_name(value: str) -> None:
    with pytest.raises(Refused, match="search_path"):
        canonical({"search_path": value})
