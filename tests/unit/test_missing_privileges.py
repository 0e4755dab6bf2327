"""postgres/missing_privileges: the SQL that a refused change needs, by version."""

from dataclasses import replace

import pytest

from pgrole_controller.core.diff import (
    Change,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    SetAttribute,
    SetComment,
    SetParameter,
)
from pgrole_controller.core.parameters import ALL
from pgrole_controller.core.role import Membership
from pgrole_controller.postgres.missing_privileges import Rights, find_missing_privileges

RIGHTS = Rights("pgrole", frozenset({"createrole"}), administers=frozenset({"ours"}), superusers=frozenset({"boss"}))
BEFORE_16 = Rights("pgrole", frozenset({"createrole"}), superusers=frozenset({"boss"}), scoped=False)
#: The role is a superuser, or has REPLICATION.
SUPERUSER = replace(RIGHTS, is_superuser=True)
REPLICATION = replace(BEFORE_16, is_replication=True)
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


@pytest.mark.parametrize(
    ("change", "sql"),
    [
        (SetAttribute("app", "connection_limit", 5), 'ALTER ROLE "app" CONNECTION LIMIT 5'),
        (SetAttribute("app", "bypassrls", True), 'ALTER ROLE "app" BYPASSRLS'),
        (SetAttribute("app", "password", "never shown"), 'ALTER ROLE "app" PASSWORD …'),
        (SetComment("app", "one"), 'COMMENT ON ROLE "app" IS …'),
        (SetParameter("app", "shop", "work_mem", "1MB"), 'ALTER ROLE "app" IN DATABASE "shop" SET "work_mem" = …'),
        (SetParameter("app", None, "my.odd", None), 'ALTER ROLE "app" RESET "my"."odd"'),
        (Rename("old", "app"), 'ALTER ROLE "old" RENAME TO "app"'),
    ],
)
def test_for_a_declared_superuser_the_change_itself_is_named(change: Change, sql: str) -> None:
    rights = replace(SUPERUSER, settable=frozenset({"work_mem", "my.odd"}))
    (missing,) = find_missing_privileges([change], rights)
    assert (missing.sql, missing.allows) == (sql, False)


@pytest.mark.parametrize(("rights", "attribute"), [(SUPERUSER, "superuser"), (REPLICATION, "replication")])
def test_an_attribute_is_taken_away_only_if_it_is_not_declared(rights: Rights, attribute: str) -> None:
    limit = SetAttribute("app", "connection_limit", 5)
    (missing,) = find_missing_privileges([limit], rights)
    assert missing.sql == 'ALTER ROLE "app" CONNECTION LIMIT 5'
    found = find_missing_privileges([SetAttribute("app", attribute, False), limit], rights)
    assert {(one.sql, one.allows) for one in found} == {(f'ALTER ROLE "app" NO{attribute.upper()}', False)}


def test_a_superuser_that_is_to_be_dropped_is_no_longer_one_first() -> None:
    (missing,) = find_missing_privileges([Drop("app")], SUPERUSER)
    assert (missing.sql, missing.allows) == ('ALTER ROLE "app" NOSUPERUSER', True)


@pytest.mark.parametrize(
    "change",
    [SetComment("app", "one"), SetParameter("app", None, "work_mem", "1MB"), Rename("old", "app"), Drop("app")],
)
def test_before_16_replication_holds_back_attributes_only(change: Change) -> None:
    assert find_missing_privileges([change], replace(REPLICATION, settable=frozenset({"work_mem"}))) == ()


def test_where_reset_all_keeps_parameters_only_a_superuser_sets_any() -> None:
    rights = replace(RIGHTS, keeping=frozenset({"shop"}), settable=frozenset({"work_mem"}))
    changes = (
        SetParameter("app", "shop", ALL, None),
        SetParameter("app", "shop", "work_mem", "1MB"),
        SetParameter("app", None, ALL, None),
    )
    found = find_missing_privileges(changes, rights)
    assert [one.change for one in found] == list(changes[:2])
    assert {(one.sql, one.allows) for one in found} == {('ALTER ROLE "app" IN DATABASE "shop" RESET ALL', False)}
