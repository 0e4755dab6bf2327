"""core/audit_line: role commands in PostgreSQL's jsonlog; passwords are never kept."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.audit_line import MOST_BELOW, ChangedRole, RoleCommand, find_author, read_lines
from pgrole_controller.core.privileges.privilege_result import Evidence

#: When the lines were written, unless they say something else.
AT = datetime(2026, 11, 22, 18, 17, 37, 326000, tzinfo=UTC)
LATER = "2026-11-22 19:17:37.326 UTC"


def line(message: str, **changed: Any) -> bytes:
    """As PostgreSQL 15 and pgaudit 1.7 write it."""
    entry = {
        "timestamp": "2026-11-22 18:17:37.326 UTC",
        "user": "alice",
        "dbname": "postgres",
        "pid": 31346,
        "remote_host": "127.0.0.1",
        "remote_port": 35380,
        "session_id": "6b0331c1.7a72",
        "line_num": 1,
        "ps": "CREATE ROLE",
        "txid": 725,
        "error_severity": "LOG",
        "message": message,
        "application_name": "psql",
        "backend_type": "client backend",
        "query_id": 0,
        **changed,
    }
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogateescape")


def audit(statement: str, command: str = "ALTER ROLE", **changed: Any) -> bytes:
    quoted = '"' + statement.replace('"', '""') + '"' if set(statement) & set(',"\n') else statement
    return line(f"AUDIT: SESSION,1,1,ROLE,{command},,,{quoted},<not logged>", **changed)


def one(raw: bytes) -> RoleCommand:
    (command,) = read_lines([raw])
    return command


def test_a_pgaudit_line_gives_transaction_command_client_time_and_names() -> None:
    command = one(audit("ALTER ROLE app CREATEDB"))
    assert (command.txid, command.command, command.login) == (725, "ALTER ROLE", "alice")
    assert (command.application, command.address) == ("psql", "127.0.0.1")
    assert command.time == AT
    assert "app" in command.names


def test_a_line_of_the_statement_log_gives_names_but_no_command() -> None:
    for beginning in ("statement: ", "execute <unnamed>: ", "execute stmt_1: "):
        command = one(line(f"{beginning}alter role App set work_mem = '1MB'", txid=0))
        assert command.command == ""
        assert {"app", "work_mem"} <= command.names


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER ROLE app PASSWORD 'geheim'",
        "ALTER ROLE app PASSWORD E'x\\'geheim'",
        "ALTER ROLE app PASSWORD $$geheim$$",
        "ALTER ROLE app PASSWORD $a1$ $$ geheim $a1$",
        "ALTER ROLE app /* geheim */ LOGIN -- geheim",
        "ALTER ROLE app PASSWORD 'it''s geheim",
        "ALTER ROLE app PASSWORD U&'geheim'",
    ],
)
def test_no_literal_is_kept(statement: str) -> None:
    for raw in (audit(statement), line(f"statement: {statement}")):
        command = one(raw)
        assert "app" in command.names
        assert "geheim" not in repr(command)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ('ALTER ROLE "My ""Role""" LOGIN', 'My "Role"'),
        ("GRANT pg_monitor TO APP", "app"),
        ("ALTER ROLE app RENAME TO other", "other"),
        (f"DROP ROLE {'x' * 70}", "x" * 63),
        ("DROP ROLE r\u00f4le", "r\u00f4le"),
    ],
)
def test_names_are_as_postgresql_stores_them(statement: str, name: str) -> None:
    assert name in one(audit(statement)).names


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no JSON with AUDIT: and ,ROLE,",
        b'["AUDIT: ,ROLE,"]',
        b'{"message":"AUDIT: ,ROLE,"}',
        b'{"message":7,"x":"AUDIT: ,ROLE,"}',
        audit("ALTER ROLE app LOGIN")[:-20],
        audit("SELECT 1").replace(b",ROLE,", b",READ,"),
        line("statement: SELECT 'role'"),
        line("AUDIT: SESSION,1,1,DDL,CREATE TABLE,,,ROLE,x"),
        line("AUDIT: SESSION,1,1,ROLE,GRANT,TABLE,,GRANT SELECT ON orders TO app,<not logged>"),
        line("AUDIT: SESSION,1,1,ROLE,REVOKE,TABLE,,REVOKE SELECT ON orders FROM app,<not logged>"),
        audit("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO app", "ALTER DEFAULT PRIVILEGES"),
        b"[" * 5000 + b"AUDIT: ,ROLE,",
    ],
)
def test_other_lines_are_ignored(raw: bytes) -> None:
    assert list(read_lines([raw])) == []


def test_a_statement_of_any_length_gives_its_author() -> None:
    long = f"ALTER ROLE app SUPERUSER /* , {'x' * 200_000} */"
    for raw in (audit(long), audit(long.replace(",", "")), line(f"statement: {long}")):
        command = one(raw)
        assert (command.txid, command.login) == (725, "alice")
        assert command.names == {"alter", "role", "app", "superuser"}


def test_memberships_are_role_commands() -> None:
    for command, statement in (("GRANT ROLE", "GRANT dba TO app"), ("REVOKE ROLE", "REVOKE dba FROM app")):
        assert one(audit(statement, command)).names >= {"dba", "app"}


@given(st.binary(max_size=200), st.text(max_size=200), st.integers())
def test_no_line_raises_an_error(noise: bytes, text: str, number: int) -> None:
    hostile = {"txid": number, "timestamp": text, "user": [text], "application_name": text}
    raw = json.dumps({"message": f"AUDIT: SESSION,1,1,ROLE,{text},,,{text},", **hostile}).encode()
    for command in read_lines([noise, raw, b"AUDIT: ,ROLE," + noise, raw + noise]):
        assert 0 <= command.txid < 2**32
        assert command.application == command.application.strip()


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-22 20:17:37.326 +02", datetime(2026, 11, 22, 18, 17, 37, 326000, tzinfo=UTC)),
        ("2026-11-22 15:47:37.326 -02:30", datetime(2026, 11, 22, 18, 17, 37, 326000, tzinfo=UTC)),
        ("2026-11-22 19:17:37.326 CET", datetime(2026, 11, 22, 18, 17, 37, 326000, tzinfo=UTC)),
        ("yesterday", None),
        (None, None),
    ],
)
def test_timestamps_are_read_with_their_offset_or_in_the_given_zone(text: str | None, time: datetime | None) -> None:
    (command,) = read_lines([audit("DROP ROLE app", timestamp=text)], zone=3600)
    assert command.time == time


class TestAuthor:
    def test_the_rows_transaction_id_proves_the_author(self) -> None:
        commands = [one(audit(f"ALTER ROLE app SET x.y = {n}", txid=n, user=f"user{n}")) for n in (100, 101, 102)]
        found = find_author(commands, ChangedRole("app", (101,)))
        assert found is not None
        assert (found.proof, found.login, found.statement) == (Evidence.TRANSACTION, "user101", "")

    def test_a_subtransaction_is_attributed_to_a_nearby_transaction_that_names_the_role(self) -> None:
        commands = [one(audit("ALTER ROLE app LOGIN", txid=100)), one(audit("DROP ROLE x", txid=102, user="bob"))]
        found = find_author(commands, ChangedRole("app", (103,)))
        assert found is not None
        assert (found.proof, found.login) == (Evidence.TRANSACTION, "alice")
        far = find_author(commands, ChangedRole("app", (100 + MOST_BELOW + 1,)))
        assert far is not None
        assert far.proof is Evidence.LOG

    def test_a_command_that_the_controller_answered_since_proves_nothing_about_a_later_row(self) -> None:
        def find(repaired: str, txid: int) -> Evidence:
            own = audit(
                f"ALTER ROLE {repaired} LOGIN", txid=txid, user="own", application_name="pgrole-controller work"
            )
            commands = [*read_lines([audit("ALTER ROLE app NOLOGIN", txid=1000), own])]
            found = find_author(commands, ChangedRole("app", (1003,)), own_login="own")
            assert found is not None
            assert found.login == "alice"
            return found.proof

        assert find("app", 1001) is Evidence.LOG
        assert find("other", 1001) is find("app", 999) is find("app", 1004) is Evidence.TRANSACTION

    def test_transaction_ids_wrap_around(self) -> None:
        found = find_author([one(audit("ALTER ROLE app LOGIN", txid=2**32 - 1))], ChangedRole("app", (4,)))
        assert found is not None
        assert found.proof is Evidence.TRANSACTION

    def test_without_an_id_the_last_foreign_command_that_names_the_role_is_chosen(self) -> None:
        commands = [
            one(audit("ALTER ROLE app LOGIN", user=user, application_name=application))
            for user, application in (("a", "x"), ("bob", "psql"), ("own", "pgrole-controller work"))
        ]
        found = find_author(commands, ChangedRole("app"), own_login="own")
        assert found is not None
        assert (found.proof, found.login) == (Evidence.LOG, "bob")
        # any client can use the controller's application name
        disguised = find_author(commands, ChangedRole("app"), own_login="someone else")
        assert disguised is not None
        assert disguised.login == "own"

    def test_without_an_id_only_commands_since_the_role_last_matched_are_considered(self) -> None:
        commands = [one(audit("ALTER ROLE app LOGIN"))]
        assert find_author(commands, ChangedRole("app", since=AT)) is not None
        assert find_author(commands, ChangedRole("app", since=AT + timedelta(seconds=1))) is None

    def test_a_removed_row_is_not_blamed_on_who_caused_the_drift_before(self) -> None:
        """The latest row that remains is the controller's, which corrected that drift."""
        alice = audit("ALTER ROLE app CREATEDB", txid=899)
        own = audit("ALTER ROLE app NOCREATEDB", txid=900, user="own", application_name="pgrole-controller work")
        revoked = audit("REVOKE dba FROM app", "REVOKE ROLE", txid=950, user="bob", timestamp=LATER)
        commands = [*read_lines([alice, own, revoked])]
        for since in (AT + timedelta(seconds=1), None):
            found = find_author(commands, ChangedRole("app", (900,), since), own_login="own")
            assert found is not None
            assert (found.proof, found.login) == (Evidence.LOG, "bob")
        assert find_author(commands[:2], ChangedRole("app", (900,), AT + timedelta(seconds=1)), own_login="own") is None

    def test_a_removed_row_is_not_blamed_on_who_wrote_another_one_long_ago(self) -> None:
        commented, dropped = audit("ALTER ROLE app CREATEDB", txid=899), audit("DROP ROLE x", txid=850, user="carol")
        revoked = audit("REVOKE dba FROM app", "REVOKE ROLE", txid=950, user="bob", timestamp=LATER)
        commands = [*read_lines([dropped, commented, revoked])]
        for xmin in (899, 900, 850):
            found = find_author(commands, ChangedRole("app", (xmin,), AT + timedelta(seconds=1)))
            assert found is not None
            assert (found.proof, found.login) == (Evidence.LOG, "bob")

    def test_who_wrote_the_row_long_before_the_drift_was_found_is_named_with_less_proof(self) -> None:
        """The transaction was long, or its repair was held back."""
        commands = [one(audit("ALTER ROLE app CREATEDB", txid=899))]
        found = find_author(commands, ChangedRole("app", (899,), AT + timedelta(seconds=1)))
        assert found is not None
        assert (found.proof, found.login) == (Evidence.LOG, "alice")
        assert find_author(commands, ChangedRole("app", (900,), AT + timedelta(seconds=1))) is None

    def test_no_author_is_found_without_a_matching_command(self) -> None:
        assert find_author([one(audit("ALTER ROLE other LOGIN", txid=7))], ChangedRole("app", (9,))) is None
        assert find_author([], ChangedRole("app", (9,))) is None
