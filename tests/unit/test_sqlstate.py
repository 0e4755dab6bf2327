"""postgres/errors: how PostgreSQL's errors are classified."""

import asyncpg
import pytest

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, RefusedForNow, Transient, Waiting
from pgrole_controller.core.outcome import Phase, of_error
from pgrole_controller.postgres.errors import classify, translate_errors


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("40001", Transient, Reason.PROGRESSING),
        ("40P01", Transient, Reason.PROGRESSING),
        ("XX000", Transient, Reason.DATABASE_ERROR),
        ("XX002", Transient, Reason.DATABASE_ERROR),
        ("23505", Transient, Reason.PROGRESSING),
        ("PGR01", Transient, Reason.PROGRESSING),
        ("42710", Transient, Reason.PROGRESSING),
        ("08006", Transient, Reason.SERVER_NOT_READY),
        ("57P01", Transient, Reason.SERVER_NOT_READY),
        ("57P03", Transient, Reason.SERVER_NOT_READY),
        ("53100", Transient, Reason.SERVER_NOT_READY),
        ("53200", Transient, Reason.SERVER_NOT_READY),
        ("53300", Transient, Reason.SERVER_NOT_READY),
        ("53400", Transient, Reason.SERVER_NOT_READY),
        ("55000", Transient, Reason.SERVER_NOT_READY),
        ("25006", Transient, Reason.SERVER_NOT_READY),
        ("28P01", Transient, Reason.SERVER_NOT_READY),
        ("3D000", Transient, Reason.SERVER_NOT_READY),
        ("57014", Transient, Reason.DATABASE_ERROR),
        ("55P03", Transient, Reason.DATABASE_ERROR),
        ("42501", Transient, Reason.DATABASE_ERROR),
        ("XX001", Transient, Reason.DATABASE_ERROR),
        ("2BP01", Waiting, Reason.DROP_BLOCKED),
        ("22023", Refused, Reason.INVALID_SPEC),
        ("42939", Refused, Reason.INVALID_SPEC),
        ("25001", Refused, Reason.INVALID_SPEC),
        ("0LP01", RefusedForNow, Reason.INVALID_SPEC),
    ],
)
def test_each_sqlstate_has_its_kind_of_error_and_its_reason(code: str, kind: type[PgRoleError], reason: Reason) -> None:
    error = classify(code, "the words of the server")
    assert type(error) is kind
    assert error.reason is reason
    assert "the words of the server" in error.message


@pytest.mark.parametrize(("code", "retried"), [("0LP01", True), ("22023", False)])
def test_only_a_cycle_of_memberships_is_an_invalid_spec_that_is_retried(code: str, retried: bool) -> None:
    outcome = of_error(classify(code, "the words of the server"))
    assert (outcome.phase, outcome.reason, outcome.retried) == (Phase.STALLED, Reason.INVALID_SPEC, retried)


@pytest.mark.parametrize("code", [None, "", "99999"])
def test_an_unknown_sqlstate_is_retried(code: str | None) -> None:
    assert isinstance(classify(code, "x"), Transient)


@pytest.mark.parametrize("text", ["tuple concurrently updated", "tuple concurrently deleted"])
def test_two_internal_errors_are_concurrent_changes(text: str) -> None:
    assert classify("XX000", text).reason is Reason.PROGRESSING


@pytest.mark.parametrize("code", ["XX000", "XX001", "XX002"])
def test_every_other_internal_error_is_named(code: str) -> None:
    error = classify(code, "could not read block 3")
    assert code in error.message
    assert "concurrent" not in error.message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("53100", "free some space"),
        ("53300", "raise max_connections or the CONNECTION LIMIT"),
    ],
)
def test_a_shortage_of_the_server_is_reported_with_its_remedy(code: str, words: str) -> None:
    assert words in classify(code, "x").message


def test_a_connection_that_closes_while_a_statement_is_sent_is_not_told_in_words_of_the_library() -> None:
    with pytest.raises(Transient) as raised, translate_errors():
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    assert str(raised.value) == "the connection to PostgreSQL failed: the server closed it while a statement was sent"


def undefined(function: str, text: str) -> asyncpg.UndefinedObjectError:
    error = asyncpg.UndefinedObjectError(text)
    error.server_source_function = function
    return error


@pytest.mark.parametrize("function", ["ExecuteDoStmt", "CreateFunction"])
@pytest.mark.parametrize("text", ['language "plpgsql" does not exist', "Sprache »plpgsql« existiert nicht"])
def test_a_missing_language_is_recognized_in_any_language_of_the_server(function: str, text: str) -> None:
    with pytest.raises(Transient) as raised, translate_errors():
        raise undefined(function, text)
    assert raised.value.reason is Reason.SERVER_NOT_READY
    assert "run CREATE EXTENSION plpgsql there" in raised.value.message


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("get_role_oid", 'role "language "plpgsql" does not exist" does not exist'),
        ("typenameType", 'type "language "plpgsql"" does not exist'),
        ("exec_stmt_raise", 'language "plpgsql" does not exist'),
    ],
)
def test_another_missing_object_is_no_missing_language_whatever_its_name(function: str, text: str) -> None:
    with pytest.raises(Transient) as raised, translate_errors():
        raise undefined(function, text)
    assert raised.value.reason is Reason.PROGRESSING
    assert text in raised.value.message
