"""core/diff: applying the difference to any observed role gives the desired role."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.diff import (
    Change,
    Create,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetComment,
    SetParameter,
    diff,
    field_names,
)
from pgrole_controller.core.parameters import Parameters
from pgrole_controller.core.role import Grant, Membership, Role, digest, membership_of
from tests.roles import roles


def apply(changes: tuple[Change, ...], observed: Role | None) -> Role | None:
    """Returns the role after the changes."""
    role = observed
    for change in changes:
        match change:
            case Create(role=created):
                role = replace(created, comment=None, member_of=(), parameters=(), database_parameters=())
            case Drop():
                role = None
            case Rename(new=new):
                role = replace(existing(role), name=new)
            case SetAttribute(attribute=attribute, value=value):
                role = replace(existing(role), **{attribute: value})
            case SetComment(comment=comment):
                role = replace(existing(role), comment=comment)
            case RevokeMembership() | RevokeOption() | GrantMembership():
                role = replace(existing(role), member_of=apply_membership(change, existing(role)))
            case SetParameter():
                role = apply_parameter(change, existing(role))
    return role


def apply_membership(change: RevokeMembership | RevokeOption | GrantMembership, role: Role) -> tuple[Membership, ...]:
    held = {membership.role: membership for membership in role.member_of}
    match change:
        case RevokeMembership(group=group):
            del held[group]
        case RevokeOption(group=group, option=option):
            left = held[group]
            admin, inherit, set_ = (name != option and getattr(left, name) for name in ("admin", "inherit", "set"))
            held[group] = replace(left, admin=admin, inherit=inherit, set=set_)
        case GrantMembership(membership=membership):
            held[membership.role] = membership
    return tuple(sorted(held.values(), key=lambda membership: membership.role))


def apply_parameter(change: SetParameter, role: Role) -> Role:
    if change.database is None:
        return replace(role, parameters=with_parameter(role.parameters, change))
    databases = dict(role.database_parameters)
    databases[change.database] = with_parameter(databases.get(change.database, ()), change)
    return replace(role, database_parameters=tuple(sorted((name, held) for name, held in databases.items() if held)))


def with_parameter(parameters: Parameters, change: SetParameter) -> Parameters:
    left = {name: value for name, value in parameters if name != change.name}
    if change.value is not None:
        left[change.name] = change.value
    return tuple(sorted(left.items()))


def existing(role: Role | None) -> Role:
    if role is None:
        raise ValueError("a change of a role that does not exist")
    return role


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
