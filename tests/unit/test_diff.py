"""core/diff: applying the difference to any observed role gives the desired role."""

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.diff import Create, apply, diff, field_names
from pgrole_controller.core.role import Role, digest
from tests.roles import roles


@given(roles(), st.none() | roles())
def test_the_difference_applied_to_what_is_there_is_what_is_wanted(desired: Role, observed: Role | None) -> None:
    assert apply(diff(desired, observed), observed) == desired


@given(roles())
def test_equal_roles_differ_in_nothing(role: Role) -> None:
    assert diff(role, role) == ()


@given(roles(), st.none() | roles())
def test_the_difference_is_ordered_and_the_same_each_time(desired: Role, observed: Role | None) -> None:
    changes = diff(desired, observed)
    assert changes == diff(desired, observed)
    if observed is None:
        assert changes[0] == Create(desired)


@given(roles(), roles())
def test_digests_are_equal_only_for_equal_roles(one: Role, other: Role) -> None:
    assert (digest(one) == digest(other)) == (one == other)


def test_fields_are_named_as_in_the_spec_and_each_once() -> None:
    observed = Role("other", connection_limit=3, valid_until=0, superuser=True)
    assert field_names(diff(Role("app"), observed)) == ("name", "superuser", "connectionLimit", "validUntil")


def test_the_digest_of_a_role_stays_the_same_in_later_versions() -> None:
    # It is kept in the database: were it to change, every drift of the first look would pass as a changed spec.
    assert digest(Role("app")) == "sha256:7bb53dd613cfc7cf35b6c241a78af912de5f92e486be9b29b32d4a6c78fbb142"
