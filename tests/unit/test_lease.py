"""When a Lease may be taken, and for how long it is held."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.kube.lease import (
    LONGEST_SECONDS,
    LeaseRecord,
    LeaseTiming,
    ObservedLease,
    observe,
    observe_missing,
    release,
    renew,
    take,
)


class TestRules:
    HELD = LeaseRecord("a", 15, "then", "then", 3)

    def test_a_lease_is_free_after_it_stayed_unchanged_for_its_duration(self) -> None:
        assert observe(None, self.HELD, "1", 100.0).free_at == 115.0

    def test_a_renewed_lease_is_held_for_its_duration_from_then_on(self) -> None:
        renewed = renew(self.HELD, LeaseTiming(), "now")
        assert observe(observe(None, self.HELD, "1", 100.0), renewed, "2", 110.0).free_at == 125.0

    def test_a_new_version_alone_is_no_renewal(self) -> None:
        assert observe(observe(None, self.HELD, "1", 100.0), self.HELD, "2", 110.0).free_at == 115.0

    def test_a_released_lease_is_free_at_once(self) -> None:
        assert observe(None, release(self.HELD, "now"), "2", 110.0).free_at == 110.0

    def test_a_deleted_lease_belongs_to_its_holder_for_as_long_as_before(self) -> None:
        gone = observe_missing(observe(None, self.HELD, "1", 100.0))
        assert gone is not None
        assert (gone.version, gone.free_at) == (None, 115.0)

    def test_a_lease_that_was_never_observed_can_be_taken(self) -> None:
        assert observe_missing(None) is None
        assert take(None, "b", LeaseTiming(), "now") == LeaseRecord("b", 15, "now", "now", 0)

    def test_an_excessive_duration_is_capped(self) -> None:
        for_ever = LeaseRecord("a", 2**31 - 1, "then", "then", 0)
        assert observe(None, for_ever, "1", 100.0).free_at == 100.0 + LONGEST_SECONDS

    def test_only_a_change_of_the_holder_is_a_transition(self) -> None:
        seen = observe(None, self.HELD, "1", 100.0)
        assert take(seen, "b", LeaseTiming(), "now") == LeaseRecord("b", 15, "now", "now", 4)
        assert take(seen, "a", LeaseTiming(), "now") == LeaseRecord("a", 15, "then", "now", 3)

    def test_transitions_stay_within_the_range_of_the_lease_field(self) -> None:
        many = observe(None, LeaseRecord("a", 15, "then", "then", 2**31 - 1), "1", 100.0)
        assert take(many, "b", LeaseTiming(), "now").transitions == 2**31 - 1

    def test_a_holder_stops_before_another_may_take_the_lease(self) -> None:
        timing = LeaseTiming()
        transaction_seconds = 4.0
        assert timing.deadline + transaction_seconds < timing.duration
        assert timing.period * 3 < timing.deadline


class LeaseWorld:
    """Two processes that keep to the rules, one Lease, and a clock that only the test moves.

    Each step is one thing that can happen: a process looks, takes or renews (and its answer may come late, or never),
    or time passes. A write holds from when it was sent, as far as its sender knows: `until`.
    """

    TIMING = LeaseTiming()

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: tuple[LeaseRecord, int] | None = None
        self.version = 0
        self.seen: dict[str, ObservedLease | None] = {"a": None, "b": None}
        self.until = {"a": -1.0, "b": -1.0}
        self.sent: dict[str, tuple[float, LeaseRecord, str | None] | None] = {"a": None, "b": None}

    def leading(self, name: str) -> bool:
        return self.now < self.until[name]

    def look(self, name: str) -> None:
        if self.stored is None:
            self.seen[name] = observe_missing(self.seen[name])
        else:
            record, version = self.stored
            self.seen[name] = observe(self.seen[name], record, str(version), self.now)

    def send(self, name: str) -> None:
        """Takes or renews the Lease if the rules permit it, given what the process has observed."""
        seen = self.seen[name]
        if seen is None or seen.record.holder == name or seen.free_at <= self.now:
            record = take(seen, name, self.TIMING, str(self.now))
            self.sent[name] = (self.now, record, seen.version if seen else None)

    def arrive(self, name: str, *, answered: bool) -> None:
        """Delivers the write to the API server, possibly long after it was sent."""
        sent, self.sent[name] = self.sent[name], None
        if sent is None:
            return
        at, record, version = sent
        there = None if self.stored is None else str(self.stored[1])
        if version != there:
            return
        self.version += 1
        self.stored = (record, self.version)
        if answered:
            self.until[name] = at + self.TIMING.deadline
            self.seen[name] = observe(self.seen[name], record, str(self.version), self.now)

    def delete(self) -> None:
        """Deletes the Lease as an administrator might, after all processes have observed it."""
        if self.stored is not None and all(self.seen.values()):
            self.look("a")
            self.look("b")
            self.stored = None
            self.version += 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["look", "send", "arrive", "lose"]), st.sampled_from("ab")),
        st.tuples(st.just("pass"), st.floats(0.01, 20.0)),
        st.tuples(st.just("delete"), st.just("")),
    ),
    max_size=60,
)


@given(STEPS)
def test_two_processes_never_lead_at_the_same_time_in_any_order_of_events(steps: list[tuple[str, Any]]) -> None:
    world = LeaseWorld()
    for what, of in steps:
        if what == "pass":
            world.now += of
        elif what == "delete":
            world.delete()
        elif what == "arrive":
            world.arrive(of, answered=True)
        elif what == "lose":
            world.arrive(of, answered=False)
        else:
            getattr(world, what)(of)
        assert not (world.leading("a") and world.leading("b"))
