"""core/template: a text with fields, which can reach nothing else."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.template import FIELDS, PASSWORD_FIELDS, fill, find, measure, parse, vary
from tests.roles import texts

VALUES = vary(
    {
        "username": "orders app",
        "password": "p:w\\d/1",
        "host": "pg.example.internal",
        "port": "5432",
        "database": "orders",
        "sslmode": "verify-full",
    }
)


def test_every_field_has_a_value() -> None:
    assert set(VALUES) == FIELDS


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("{username}@{host}:{port}", "orders app@pg.example.internal:5432"),
        ("{username_url}:{password_url}", "orders%20app:p%3Aw%5Cd%2F1"),
        ("{password_pgpass}", "p\\:w\\\\d/1"),
        ('{{"user": "{username}"}}', '{"user": "orders app"}'),
        ("{{{port}}}", "{5432}"),
        ("{{port}}", "{port}"),
        ("{sslmode}\n{database}\n", "verify-full\norders\n"),
    ],
)
def test_fields_are_filled_in_and_doubled_braces_become_literal_braces(template: str, text: str) -> None:
    assert fill(parse(template), VALUES) == text


@pytest.mark.parametrize(
    "template",
    [
        "{username.__class__}",
        "{username[0]}",
        "{username!r}",
        "{username!}",
        "{username:>100}",
        "{username:{port}}",
        "{username:}",
        "{port:{sslmode.__class__}}",
        "{}",
        "{0}",
        "{ username }",
        "{Username}",
        "{port_url}",
        "{__class__}",
        "{pass{word}}",
        "{usernamе}",  # the last letter is Cyrillic
        "${HOME}",
    ],
)
def test_a_template_reaches_nothing_but_its_fields(template: str) -> None:
    with pytest.raises(ValueError, match=r"field|brace"):
        parse(template)


@pytest.mark.parametrize("template", ["{", "}", "{{}", "{username", "username}", "{user{name}", "{a[}"])
def test_the_error_about_a_lone_brace_says_what_to_write(template: str) -> None:
    with pytest.raises(ValueError, match=r"write \{field\} for a value, \{\{ or \}\} for a literal brace"):
        parse(template)


def test_the_error_about_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"\{dbname\} is not a field: write one of database, .*username_url"):
        parse("{dbname}")


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        parse("\ud800")


@given(st.text() | texts())
def test_any_text_is_a_template_of_known_fields_or_is_refused(text: str) -> None:
    try:
        template = parse(text)
    except ValueError:
        return
    assert template.fields <= FIELDS
    fill(template, VALUES)


@given(texts())
def test_any_text_with_doubled_braces_is_filled_in_as_the_text_itself(text: str) -> None:
    assert fill(parse(text.replace("{", "{{").replace("}", "}}")), VALUES) == text


@given(st.lists(st.sampled_from(sorted(FIELDS)).map("{{{}}}".format) | st.just("{{") | st.just("é "), max_size=9))
def test_find_locates_the_value_and_measure_gives_the_size(pieces: list[str]) -> None:
    template = parse("".join(pieces))
    text = fill(template, VALUES)
    assert measure(template, {name: len(value.encode()) for name, value in VALUES.items()}) == len(text.encode())
    place = find(template, VALUES, PASSWORD_FIELDS)
    assert (place is None) == template.fields.isdisjoint(PASSWORD_FIELDS)
    if place is not None:
        offset, length = place
        assert text[offset : offset + length] in {VALUES[name] for name in PASSWORD_FIELDS}


@pytest.mark.parametrize(
    ("host", "in_url"),
    [
        ("pg.example", "pg.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "[::1]"),
        ("2001:db8::5432", "[2001:db8::5432]"),
        ("fe80::1%eth0", "[fe80::1%25eth0]"),
        ("/run/postgresql", "%2Frun%2Fpostgresql"),
        ("not:an:address", "not%3Aan%3Aaddress"),
    ],
)
def test_a_host_in_a_url_is_percent_encoded_and_an_ipv6_address_in_brackets(host: str, in_url: str) -> None:
    assert vary({"host": host})["host_url"] == in_url


@given(texts())
def test_a_value_in_a_url_has_no_reserved_character(value: str) -> None:
    quoted = vary({"password": value})["password_url"]
    assert unquote(quoted) == value
    assert not set(quoted) & set(":/?#[]@!$&'()*+,;= \n\\\"<>")
