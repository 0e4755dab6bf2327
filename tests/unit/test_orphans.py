"""Claims of objects that are gone: released in chunks, and one that fails holds up no other."""

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.controller.orphans import CHUNK, Orphans
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.request import Key

FAILURE = Transient(Reason.DATABASE_ERROR, "no")


def claims(count: int) -> list[tuple[Key, str, str]]:
    return [(Key("shop", f"o{number}"), f"r{number}", f"u{number}") for number in range(count)]


def release(orphans: Orphans, poisoned: set[str]) -> list[set[str]]:
    """The chunks that were released, in order: one with a poisoned claim fails as a whole."""
    released = []
    while not orphans.done:
        chunk = orphans.take(lambda _: True)
        names = {name for name, _ in chunk}
        assert 0 < len(names) <= CHUNK
        failed = bool(names & poisoned)
        orphans.end(chunk, FAILURE if failed else None)
        if not failed:
            released.append(names)
    return released


def test_thousands_are_released_in_chunks() -> None:
    orphans = Orphans()
    orphans.load(claims(10_000))
    released = release(orphans, set())
    assert [len(names) for names in released] == [CHUNK] * (10_000 // CHUNK)


@given(count=st.integers(1, 1_200), poisoned=st.sets(st.integers(0, 1_199), max_size=4))
def test_all_are_released_but_those_that_fail_alone(count: int, poisoned: set[int]) -> None:
    orphans = Orphans()
    orphans.load(claims(count))
    bad = {f"r{number}" for number in poisoned}
    released = [name for names in release(orphans, bad) for name in names]
    assert sorted(released) == sorted({f"r{number}" for number in range(count)} - bad)


def test_one_whose_object_is_made_again_meanwhile_is_left_alone() -> None:
    orphans = Orphans()
    orphans.load(claims(CHUNK + 1))
    orphans.end(orphans.take(lambda _: True), None)
    assert orphans.take(lambda _: False) == ()
    assert orphans.done


def test_nothing_is_done_before_the_claims_were_read() -> None:
    orphans = Orphans()
    assert not orphans.done
    orphans.load([])
    assert orphans.done
