"""core/privileges/recorded_statement: which privileges a GRANT or REVOKE changes, according to its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.privileges.recorded_statement import ChangedPrivilege, read_statement


def granted(privilege: str, column: str = "", *, option: bool = False) -> ChangedPrivilege:
    return ChangedPrivilege(privilege, True, column, option)


def revoked(privilege: str, column: str = "", *, option: bool = False) -> ChangedPrivilege:
    return ChangedPrivilege(privilege, False, column, option)


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("GRANT DELETE ON app.orders TO reader", granted("DELETE")),
        ("grant select,Delete,INSERT on app.orders to reader", granted("DELETE")),
        ("GRANT ALL ON app.orders TO reader", granted("DELETE")),
        ("GRANT ALL PRIVILEGES ON app.orders TO reader", granted("DELETE")),
        ("GRANT all ON ALL TABLES IN SCHEMA app TO reader", granted("MAINTAIN")),
        ('GRANT "delete" ON app.orders TO reader', granted("DELETE")),
        ("GRANT/**/DELETE/* /* ON */ x */ON app.orders TO reader", granted("DELETE")),
        ('GRANT /*"*/ DELETE ON app.orders TO reader /*"*/', granted("DELETE")),
        ("GRANT SELECT --  a line ended here\n, DELETE ON app.orders TO reader".replace("\n", " "), granted("DELETE")),
        ("GRANT SELECT ON app.orders TO reader -- line", granted("SELECT")),
        ('GRANT U&"d\\0065lete" ON app.orders TO reader', granted("DELETE")),
        ("GRANT TEMP ON DATABASE orders TO reader", granted("TEMPORARY")),
        ("GRANT TEMP ON DATABASE orders TO reader -- line", granted("TEMPORARY")),
        ("GRANT SELECT (id, total), UPDATE ON app.orders TO reader", granted("SELECT", "total")),
        ("GRANT SELECT (id, total), UPDATE ON app.orders TO reader", granted("UPDATE")),
        ("GRANT ALL (id) ON app.orders TO reader", granted("REFERENCES", "id")),
        ('GRANT SELECT ("on", "a,b") ON app.orders TO reader', granted("SELECT", "a,b")),
        ("GRANT SELECT (Id) ON app.orders TO reader", granted("SELECT", "id")),
        ("GRANT SELECT ON app.orders TO reader WITH GRANT OPTION", granted("SELECT", option=True)),
        ("GRANT SELECT ON app.orders TO reader WITH GRANT OPTION", granted("SELECT")),
        ("REVOKE SELECT ON app.orders FROM reader", revoked("SELECT")),
        ("REVOKE SELECT ON app.orders FROM reader", revoked("SELECT", "id")),
        ("REVOKE SELECT (id) ON app.orders FROM reader", revoked("SELECT", "id")),
        ("REVOKE SELECT ON app.orders FROM reader", revoked("SELECT", option=True)),
        ("REVOKE SELECT (revoke), UPDATE (id) ON app.orders FROM reader", revoked("SELECT", "revoke")),
        ("REVOKE GRANT OPTION FOR SELECT ON app.orders FROM reader", revoked("SELECT", option=True)),
        ("REVOKE GRANT OPTION FOR SELECT ON app.orders FROM other, reader CASCADE", revoked("SELECT")),
        ("ALTER DEFAULT PRIVILEGES FOR ROLE revoke GRANT INSERT ON TABLES TO reader", granted("INSERT")),
        ("ALTER DEFAULT PRIVILEGES FOR ROLE revoke REVOKE INSERT ON TABLES FROM reader", revoked("INSERT")),
        ("ALTER DEFAULT PRIVILEGES REVOKE GRANT OPTION FOR ALL ON TABLES FROM r", revoked("INSERT", option=True)),
        ("GRANT SELECT, INSE", granted("DELETE")),
        ("GRANT SELECT, /* cut in a comm", granted("DELETE")),
        ("", granted("DELETE")),
    ],
)
def test_a_change_that_the_statement_makes_is_found(statement: str, change: ChangedPrivilege) -> None:
    assert read_statement(statement).may_make(change)


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("GRANT SELECT ON app.orders TO reader", granted("DELETE")),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA app TO reader", granted("DELETE")),
        ("GRANT SELECT ON app.delete TO delete", granted("DELETE")),
        ("GRANT /* DELETE */ SELECT ON app.orders TO reader", granted("DELETE")),
        ("GRANT SELECT ON app.orders TO reader -- line", granted("DELETE")),
        ("GRANT SELECT (delete) ON app.orders TO reader", granted("DELETE")),
        ("GRANT SELECT (id) ON app.orders TO reader", granted("SELECT")),
        ("GRANT SELECT (id) ON app.orders TO reader", granted("SELECT", "total")),
        ("GRANT SELECT ON app.orders TO reader", granted("SELECT", "id")),
        ("GRANT ALL ON app.orders TO reader", granted("SELECT", "id")),
        ("GRANT SELECT ON app.orders TO reader", granted("SELECT", option=True)),
        ("GRANT DELETE ON app.orders TO reader", revoked("DELETE")),
        ("REVOKE DELETE ON app.orders FROM reader", granted("DELETE")),
        ("REVOKE SELECT (id) ON app.orders FROM reader", revoked("SELECT")),
        ("REVOKE GRANT OPTION FOR SELECT ON app.orders FROM reader", revoked("SELECT")),
        ("ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO reader", granted("DELETE")),
        ("ALTER DEFAULT PRIVILEGES IN SCHEMA app REVOKE DELETE ON TABLES FROM reader", granted("DELETE")),
    ],
)
def test_a_change_that_the_statement_does_not_make_is_told_apart(statement: str, change: ChangedPrivilege) -> None:
    assert not read_statement(statement).may_make(change)


def test_what_a_cut_text_leaves_open_is_not_denied() -> None:
    statement = "GRANT SELECT ON app.orders TO reader, "
    assert read_statement(statement).may_make(granted("SELECT", option=True), cut=True)
    assert not read_statement(statement).may_make(granted("DELETE"), cut=True)
    assert read_statement("GRANT SELECT, -- cut").may_make(granted("DELETE"), cut=True)


@pytest.mark.parametrize(
    ("statement", "name", "expected"),
    [
        ('GRANT SELECT ON app."Odd ""name""" TO reader', 'Odd "name"', True),
        ('GRANT SELECT ON app."Odd ""name""" TO reader -- line', 'Odd "name"', True),
        ("GRANT SELECT ON app.ORDERS TO reader", "orders", True),
        ("GRANT SELECT ON app.\U0001f600t$1 TO reader", "\U0001f600t$1", True),
        ("GRANT SELECT ON app.orders TO reader", "order", False),
        ("GRANT SELECT ON app.orders TO reader -- line", "order", False),
        ("GRANT SELECT ON app.orders /* TO writer */ TO reader", "writer", False),
    ],
)
def test_names_are_found_whole(statement: str, name: str, *, expected: bool) -> None:
    assert read_statement(statement).mentions(name) is expected


_PARTS = st.sampled_from(
    ["GRANT", "REVOKE", "ALL", "ON", "OPTION", "FOR", "(", ")", ",", '"', '""', "/*", "*/", "--", "'", "U&", "x", " "]
)


@given(st.text() | st.lists(_PARTS).map(" ".join) | st.lists(_PARTS).map("".join), st.booleans(), st.text())
def test_any_text_is_accepted(text: str, granted: bool, name: str) -> None:
    statement = read_statement(text)
    for column in ("", name):
        statement.may_make(ChangedPrivilege("SELECT", granted, column))
    statement.mentions(name)
