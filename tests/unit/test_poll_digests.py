"""postgres/poll: which roles differ between two rounds, in little time however many there are."""

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.postgres.poll import MANY, find_differing
from tests.cpu_time import within_a_callback

#: By oid: name and digest.
Roles = Mapping[int, tuple[bytes, int]]

NAMES = st.binary(min_size=1, max_size=3).filter(lambda name: b"\0" not in name)
ROLES = st.dictionaries(st.integers(10, 600), st.tuples(NAMES, st.integers(0, 3)), min_size=1, max_size=300)
#: Roles that are dropped, created or changed.
CHANGES = st.dictionaries(st.integers(10, 600), st.none() | st.tuples(NAMES, st.integers(0, 3)), max_size=20)


def sent(roles: Roles) -> tuple[bytes, bytes]:
    """Returns digests and names as the query of a round does."""
    digests = b"".join(struct.pack(">IQ", oid, roles[oid][1]) for oid in sorted(roles))
    return digests, b"\0".join(roles[oid][0] for oid in sorted(roles))


def expected(before: Roles, now: Roles) -> tuple[set[bytes], set[bytes]]:
    differing = {oid for oid in {*before, *now} if (before.get(oid) or b"")[1:] != (now.get(oid) or b"")[1:]}
    found = {roles[oid][0] for roles in (before, now) for oid in differing if oid in roles}
    owners, others = ({(oid, name) for oid, (name, _) in roles.items()} for roles in (before, now))
    return found, {name for _, name in owners ^ others}


@given(before=ROLES, changes=CHANGES)
def test_roles_that_were_created_dropped_or_changed_are_found_by_all_their_names(
    before: dict[int, tuple[bytes, int]], changes: dict[int, tuple[bytes, int] | None]
) -> None:
    now = {oid: role for oid, role in before.items() if oid not in changes}
    now |= {oid: role for oid, role in changes.items() if role is not None}
    # PostgreSQL's digest covers the name
    before, now = (
        {oid: (name, int.from_bytes(b"\1" + name + bytes([n]))) for oid, (name, n) in some.items()}
        for some in (before, now)
    )
    if now:
        assert find_differing(sent(before), sent(now)) == expected(before, now)


def many(count: int, digest: int = 1) -> dict[int, tuple[bytes, int]]:
    return {20_000 + number: (b"role_of_a_team_%d" % number, digest) for number in range(count)}


@pytest.mark.parametrize("oid", [19_000, 70_000, 200_000])
def test_one_role_more_or_less_among_100000_is_found_within_a_callback(oid: int) -> None:
    before = many(100_000)
    now = {**before, oid: (b"one", 2)}
    more = sent(now), sent({key: value for key, value in now.items() if key != oid})
    for one, other in (more, more[::-1]):
        with within_a_callback():
            found = find_differing(one, other)
        assert found == ({b"one"}, {b"one"})


def test_all_of_100000_roles_are_more_than_many_within_a_callback() -> None:
    before, now = sent(many(100_000)), sent(many(100_000, 2))
    with within_a_callback():
        found, _ = find_differing(before, now)
    assert len(found) > MANY
