"""core/ddl: changes become SQL, but the content of a name or a comment never does."""

import pytest
from hypothesis import given

from pgrole_controller.core.ddl import literal, quote_identifier, quote_literal, seen_name, statements
from pgrole_controller.core.diff import (
    Change,
    Drop,
    Rename,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetParameter,
    diff,
)
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.role import Role, to_microseconds
from tests.roles import names, texts


@given(names())
def test_a_quoted_name_contains_no_lone_quote(name: str) -> None:
    quoted = quote_identifier(name)
    inside = quoted[1:-1]
    assert quoted[0] == quoted[-1] == '"'
    assert inside.replace('""', "").count('"') == 0
    assert inside.replace('""', '"') == name


@given(texts())
def test_a_quoted_text_has_no_lone_quote_and_no_lone_backslash(text: str) -> None:
    quoted = quote_literal(text)
    inside = quoted.removeprefix("E")[1:-1]
    assert inside.replace("''", "").count("'") == 0
    assert quoted.startswith("E") == ("\\" in text)
    unescaped = inside.replace("''", "'")
    assert (unescaped.replace("\\\\", "\\") if quoted.startswith("E") else unescaped) == text


@pytest.mark.parametrize(("name", "problem"), [("", "0"), ("x" * 64, "64"), ("ü" * 32, "64"), ("a\0b", "NUL")])
def test_names_that_postgresql_truncates_or_cannot_hold_are_rejected(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        quote_identifier(name)


@pytest.mark.parametrize("name", ["x" * 63, "ü" * 31 + "x", "日" * 21])
def test_a_name_of_63_bytes_is_quoted_unchanged(name: str) -> None:
    assert quote_identifier(name) == f'"{name}"'


def test_each_kind_of_value_has_its_literal() -> None:
    assert literal(None) == "NULL"
    assert literal(-1) == "-1"
    assert literal("it's") == "'it''s'"
    assert literal(("a", "b'c")) == "ARRAY['a','b''c']::text[]"
    assert literal(()) == "ARRAY[]::text[]"


def test_a_role_with_defaults_is_created_without_options() -> None:
    # A role with CREATEROLE alone may not even write NOSUPERUSER.
    assert list(statements(diff(Role("app"), None))) == ['CREATE ROLE "app"']


def test_create_role_names_only_non_default_attributes_and_a_comment_follows() -> None:
    desired = Role("app", login=True, inherit=False, connection_limit=5, comment="it's ours")
    assert list(statements(diff(desired, None))) == [
        'CREATE ROLE "app" WITH LOGIN NOINHERIT CONNECTION LIMIT 5',
        """COMMENT ON ROLE "app" IS 'it''s ours'""",
    ]


def test_all_differing_attributes_and_no_others_are_in_one_statement() -> None:
    there = Role("app", superuser=True, createdb=True, connection_limit=1)
    assert list(statements(diff(Role("app", login=True), there))) == [
        'ALTER ROLE "app" WITH LOGIN NOSUPERUSER NOCREATEDB CONNECTION LIMIT -1'
    ]


def test_a_rename_comes_first_and_later_statements_use_the_new_name() -> None:
    assert list(statements(diff(Role("app", createdb=True), Role("stolen", comment="x")))) == [
        'ALTER ROLE "stolen" RENAME TO "app"',
        'ALTER ROLE "app" WITH CREATEDB',
        'COMMENT ON ROLE "app" IS NULL',
    ]


def test_valid_until_is_written_with_its_zone_and_its_absence_as_infinity() -> None:
    from datetime import UTC, datetime

    moment = to_microseconds(datetime(2027, 1, 1, 12, 30, 0, 5, tzinfo=UTC))
    assert list(statements(diff(Role("app", valid_until=moment), Role("app")))) == [
        """ALTER ROLE "app" WITH VALID UNTIL '2027-01-01T12:30:00.000005+00:00'"""
    ]
    assert list(statements(diff(Role("app"), Role("app", valid_until=moment)))) == [
        """ALTER ROLE "app" WITH VALID UNTIL 'infinity'"""
    ]


#: As read from a database: bytes that are not UTF-8, and characters that would end a literal or be formatted.
ILLEGIBLE = b"r\xf4le %I '\"\\".decode(errors="surrogateescape")


@pytest.mark.parametrize(
    "change",
    [
        RevokeMembership("app", ILLEGIBLE, ()),
        RevokeMembership("app", "group", (ILLEGIBLE,)),
        RevokeOption("app", "group", "admin", (ILLEGIBLE,), ("other",)),
        SetParameter("app", ILLEGIBLE, "app.x", None),
        SetAttribute(ILLEGIBLE, "createdb", False),
        Rename(ILLEGIBLE, "app"),
        Drop(ILLEGIBLE),
    ],
)
def test_a_name_that_is_not_utf_8_is_written_as_its_bytes(change: Change) -> None:
    (statement,) = statements([change])
    assert statement.startswith("DO ")
    assert ILLEGIBLE.encode(errors="surrogateescape").hex() in statement
    assert "\0" not in statement
    statement.encode()


def test_an_observed_name_is_a_literal_unless_it_is_not_utf_8() -> None:
    assert seen_name("it's") == "'it''s'"
    assert seen_name(ILLEGIBLE).startswith("(SELECT r.rolname ")
    seen_name(ILLEGIBLE).encode()


def test_a_name_with_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        list(statements([Drop("\ud800")]))


def test_an_error_shows_bytes_that_are_not_utf_8_in_hexadecimal() -> None:
    error = Transient(Reason.DATABASE_ERROR, f"role {ILLEGIBLE}")
    assert error.message == str(error) == "role r\\xf4le %I '\"\\"
