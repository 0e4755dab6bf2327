"""postgres/missing_privileges: the SQL that a refused change needs, by version."""

import pytest

from pgrole_controller.core.diff import Change, GrantMembership, RevokeMembership, SetAttribute, SetParameter
from pgrole_controller.core.role import Membership
from pgrole_controller.postgres.missing_privileges import Rights, find_missing_privileges

RIGHTS = Rights("pgrole", frozenset({"createrole"}), administers=frozenset({"ours"}), superusers=frozenset({"boss"}))
BEFORE_16 = Rights("pgrole", frozenset({"createrole"}), superusers=frozenset({"boss"}), scoped=False)
ADMIN = "WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"


@pytest.mark.parametrize(
    ("change", "rights", "sql", "allows"),
    [
        (GrantMembership("app", Membership("theirs")), RIGHTS, f'GRANT "theirs" TO "pgrole" {ADMIN}', True),
        (GrantMembership("app", Membership("boss")), RIGHTS, 'GRANT "boss" TO "app"', False),
        (GrantMembership("app", Membership("boss")), BEFORE_16, 'GRANT "boss" TO "app"', False),
        (
            RevokeMembership("app", "ours", ("dba",), ()),
            RIGHTS,
            'GRANT "dba" TO "pgrole" WITH INHERIT TRUE, SET FALSE',
            True,
        ),
        (
            RevokeMembership("app", "ours", ("boss",), ()),
            RIGHTS,
            'REVOKE "ours" FROM "app" GRANTED BY "boss"',
            False,
        ),
        (
            RevokeMembership("app", "theirs", ("boss",), ()),
            RIGHTS,
            'REVOKE "theirs" FROM "app" GRANTED BY "boss"',
            False,
        ),
        (
            RevokeMembership("app", "boss", ("dba",), ()),
            RIGHTS,
            'REVOKE "boss" FROM "app" GRANTED BY "dba"',
            False,
        ),
        (RevokeMembership("app", "boss", ("dba",), ()), BEFORE_16, 'REVOKE "boss" FROM "app"', False),
        (SetAttribute("app", "createdb", True), RIGHTS, 'ALTER ROLE "pgrole" CREATEDB', True),
        (SetAttribute("app", "superuser", False), RIGHTS, 'ALTER ROLE "app" NOSUPERUSER', False),
        (SetAttribute("app", "bypassrls", True), BEFORE_16, 'ALTER ROLE "app" BYPASSRLS', False),
        (
            SetParameter("app", None, "my.odd-one", "x"),
            RIGHTS,
            'GRANT SET ON PARAMETER "my"."odd-one" TO "pgrole"',
            True,
        ),
    ],
)
def test_the_missing_statement_is_named(change: Change, rights: Rights, sql: str, allows: bool) -> None:
    (missing,) = find_missing_privileges([change], rights)
    assert (missing.sql, missing.allows) == (sql, allows)


@pytest.mark.parametrize(
    ("change", "rights"),
    [
        (GrantMembership("app", Membership("ours")), RIGHTS),
        (GrantMembership("app", Membership("theirs")), BEFORE_16),
        (RevokeMembership("app", "ours", ("dba",), ()), BEFORE_16),
        (SetAttribute("app", "createdb", True), BEFORE_16),
        (SetAttribute("app", "login", True), RIGHTS),
        (SetAttribute("app", "superuser", True), Rights("pgrole", frozenset({"superuser"}))),
    ],
)
def test_what_is_permitted_lacks_nothing(change: Change, rights: Rights) -> None:
    assert find_missing_privileges([change], rights) == ()
