"""core/diff: applying the difference to any observed role gives the desired role."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.diff import Create, RevokeMembership, apply, diff, field_names
from pgrole_controller.core.role import Grant, Role, digest, membership_of
from tests.roles import roles


@given(roles(), st.none() | roles())
def test_applying_the_difference_to_the_observed_role_gives_the_desired_role(
    desired: Role, observed: Role | None
) -> None:
    assert apply(diff(desired, observed), observed) == desired


@given(roles())
def test_equal_roles_have_no_differences(role: Role) -> None:
    assert diff(role, role) == ()


@given(roles(), st.none() | roles())
def test_the_difference_is_deterministic_and_begins_with_the_creation(desired: Role, observed: Role | None) -> None:
    changes = diff(desired, observed)
    assert changes == diff(desired, observed)
    if observed is None:
        assert changes[0] == Create(desired)


@given(roles(), roles())
def test_digests_are_equal_only_for_equal_roles(one: Role, other: Role) -> None:
    assert (digest(one) == digest(other)) == (one == other)


def test_a_membership_that_create_role_gave_stays_only_while_the_role_may_create_roles() -> None:
    made = membership_of("made", [Grant("postgres", admin=True, inherit=False, set=False, by_creation=True)])
    observed = Role("app", createrole=True, member_of=(made,))
    assert diff(Role("app", createrole=True), observed) == ()
    changes = diff(Role("app"), replace(observed, createrole=False))
    assert changes == (RevokeMembership("app", "made", ("postgres",), ()),)


def test_each_field_is_named_once_and_as_in_the_spec() -> None:
    observed = Role("other", connection_limit=3, valid_until=0, superuser=True)
    assert field_names(diff(Role("app"), observed)) == ("name", "superuser", "connectionLimit", "validUntil")


def test_the_digest_of_a_role_stays_the_same_in_later_versions() -> None:
    # Claims store it: if it changed, the first reconcile after an upgrade would take every drift for a changed spec.
    assert digest(Role("app")) == "sha256:7bb53dd613cfc7cf35b6c241a78af912de5f92e486be9b29b32d4a6c78fbb142"
