"""core/role_drift: the values of a drift, for the history."""

from pgrole_controller.core.role import FIELD_NAMES, Membership, Password, Role
from pgrole_controller.core.role_drift import LONGEST_VALUE, LONGEST_VALUES, compare_values
from pgrole_controller.core.scram import Verifier

SECRET = "SCRAM-SHA-256$4096:geheim"


def test_values_are_those_of_the_fields_that_drifted() -> None:
    declared = Role("app", connection_limit=7, member_of=(Membership("a"), Membership("b")), valid_until=0)
    observed = Role("app", login=True, connection_limit=99, valid_until=2**63 - 2)
    assert compare_values(("connectionLimit", "memberOf", "validUntil"), declared, observed) == {
        "connectionLimit": {"declared": "7", "observed": "99"},
        "validUntil": {"declared": "1970-01-01T00:00:00+00:00", "observed": "infinity"},
        "memberOf": {"declared": "a, b", "observed": ""},
    }
    assert compare_values(("role",), declared, None) == {}


def test_values_of_memberships_tell_their_options_and_begin_with_what_differs() -> None:
    groups = tuple(Membership(f"group_{n:02}") for n in range(20))
    declared = Role("app", member_of=(*groups, Membership("readers"), Membership("writers")))
    observed = Role(
        "app", member_of=(*groups, Membership("readers", admin=True, inherit=False), Membership("x", set=False))
    )
    values = compare_values(("memberOf",), declared, observed)["memberOf"]
    assert values["declared"].startswith("readers, writers, group_00, ")
    assert values["observed"].startswith("readers (ADMIN, INHERIT false), x (SET false), group_00")
    assert max(map(len, values.values())) <= LONGEST_VALUE


def test_values_never_include_passwords_and_parameters_are_cut() -> None:
    password = Password("sha256:geheim", Verifier(SECRET))
    declared = Role("app", password=password)
    observed = Role("app", password=Password("sha256:other"), parameters=(("a.token", "x" * 100),))
    values = compare_values(FIELD_NAMES.values(), declared, observed)
    assert "password" not in values
    assert "geheim" not in repr(values)
    assert values["parameters"] == {"declared": "", "observed": "a.token=" + "x" * 20}


def test_all_values_together_are_bounded() -> None:
    long = "\u20ac" * 10_000
    databases = tuple((f"d{n}", (("a", long),)) for n in range(50))
    observed = Role(long, comment=long, database_parameters=databases)
    values = compare_values(FIELD_NAMES.values(), Role("app"), observed)
    texts = [text for pair in values.values() for text in pair.values()]
    assert all(len(text) <= LONGEST_VALUE for text in texts)
    assert sum(len(text.encode()) for text in texts) <= LONGEST_VALUES
