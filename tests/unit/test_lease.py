"""Leader election: the rules, and the elector against an API server that fails in whatever way is asked for."""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.hint import Key
from pgrole_controller.core.lease import LONGEST_SECONDS, Record, Seen, Timing, give_up, miss, renew, see, take
from pgrole_controller.kube.client import ApiError, Client, Unreachable
from pgrole_controller.kube.contact import Contact
from pgrole_controller.kube.lease import Elector, Term
from tests.timelapse import in_timelapse, pause

LEASE = Key("pgrole-system", "pgrole-controller")
PATH = "/apis/coordination.k8s.io/v1/namespaces/pgrole-system/leases"
DEADLINE = 600.0
TIMING = Timing()

Answer = Callable[[], Awaitable[bytes]]
Fault = Callable[[Answer], Awaitable[bytes]]
Failing = Literal["refuses", "hangs", "unheard", "slow"]


class TestRules:
    HELD = Record("a", 15, "then", "then", 3)

    def test_a_lease_is_free_when_it_was_seen_unchanged_for_its_duration(self) -> None:
        assert see(None, self.HELD, "1", 100.0).free_at == 115.0

    def test_one_that_is_renewed_is_held_from_then_on(self) -> None:
        renewed = renew(self.HELD, Timing(), "now")
        assert see(see(None, self.HELD, "1", 100.0), renewed, "2", 110.0).free_at == 125.0

    def test_a_new_version_alone_is_no_renewal(self) -> None:
        assert see(see(None, self.HELD, "1", 100.0), self.HELD, "2", 110.0).free_at == 115.0

    def test_one_that_was_given_up_is_free_at_once(self) -> None:
        assert see(None, give_up(self.HELD, "now"), "2", 110.0).free_at == 110.0

    def test_one_that_was_deleted_is_its_holders_as_long_as_before(self) -> None:
        gone = miss(see(None, self.HELD, "1", 100.0))
        assert gone is not None
        assert (gone.version, gone.free_at) == (None, 115.0)

    def test_one_that_was_never_seen_is_nobodys(self) -> None:
        assert miss(None) is None
        assert take(None, "b", Timing(), "now") == Record("b", 15, "now", "now", 0)

    def test_a_duration_that_somebody_wrote_by_hand_is_not_waited_for(self) -> None:
        for_ever = Record("a", 2**31 - 1, "then", "then", 0)
        assert see(None, for_ever, "1", 100.0).free_at == 100.0 + LONGEST_SECONDS

    def test_another_holder_is_a_transition_and_the_same_one_is_none(self) -> None:
        seen = see(None, self.HELD, "1", 100.0)
        assert take(seen, "b", Timing(), "now") == Record("b", 15, "now", "now", 4)
        assert take(seen, "a", Timing(), "now") == Record("a", 15, "then", "now", 3)

    def test_transitions_stay_a_number_that_a_lease_can_hold(self) -> None:
        many = see(None, Record("a", 15, "then", "then", 2**31 - 1), "1", 100.0)
        assert take(many, "b", Timing(), "now").transitions == 2**31 - 1

    def test_whoever_held_it_stops_before_another_may_take_it(self) -> None:
        timing = Timing()
        transaction_seconds = 4.0
        assert timing.deadline + transaction_seconds < timing.duration
        assert timing.period * 3 < timing.deadline


class Api:
    """One Lease, as an API server keeps it. `faults`: each for the next request of its verb."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 100
        self.faults: dict[str, deque[Fault]] = {"GET": deque(), "PUT": deque(), "POST": deque()}
        self.holders: list[str] = []  # each that wrote it, in order
        self._moved = anyio.Event()
        self._history: list[tuple[int, dict[str, Any]]] = []

    def fail(self, verb: str, *faults: Fault) -> None:
        self.faults[verb].extend(faults)

    def write(self, spec: dict[str, Any]) -> bytes:
        before = self.lease
        self.version += 1
        metadata = {**LEASE_METADATA, "resourceVersion": str(self.version)}
        metadata["uid"] = before["metadata"]["uid"] if before else f"uid-{self.version}"
        self.lease = {"metadata": metadata, "spec": spec}
        self.holders.append(spec.get("holderIdentity") or "")
        self._announce("MODIFIED" if before else "ADDED", self.lease)
        return json.dumps(self.lease).encode()

    def delete(self) -> None:
        assert self.lease is not None
        self.version += 1
        metadata = {**self.lease["metadata"], "resourceVersion": str(self.version)}
        self._announce("DELETED", {**self.lease, "metadata": metadata})
        self.lease = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 -- as of a Client
        **_: object,
    ) -> bytes:
        await anyio.lowlevel.checkpoint()
        if query is not None:  # the reflector's list
            items = [] if self.lease is None else [self.lease]
            return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode()

        async def answer() -> bytes:
            return self._answer(method, body)

        if not self.faults[method]:
            return await answer()
        try:
            with anyio.fail_after(timeout):
                return await self.faults[method].popleft()(answer)
        except TimeoutError as error:
            raise Unreachable(f"{method} {path}: no answer") from error

    def _answer(self, method: str, body: dict[str, Any] | None) -> bytes:
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, "NotFound", "leases")
            return json.dumps(self.lease).encode()
        assert body is not None
        if method == "POST":
            if self.lease is not None:
                raise ApiError(409, "AlreadyExists", "leases")
        elif self.lease is None:
            raise ApiError(404, "NotFound", "leases")
        elif body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "leases")
        return self.write(body["spec"])

    def _announce(self, kind: str, obj: dict[str, Any]) -> None:
        self._history.append((self.version, {"type": kind, "object": obj}))
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    @asynccontextmanager
    async def stream(self, _path: str, *, query: dict[str, str], **_: object) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._lines(int(query["resourceVersion"]))

    async def _lines(self, version: int) -> AsyncIterator[bytes]:
        while True:
            moved = self._moved
            for at, event in [entry for entry in self._history if entry[0] > version]:
                yield json.dumps(event).encode()
                version = at
            await moved.wait()


LEASE_METADATA = {"namespace": LEASE.namespace, "name": LEASE.name}


async def lose_the_answer(answer: Answer) -> bytes:
    """It arrived, and nobody hears of it."""
    await answer()
    raise Unreachable("reset")


async def hang(_answer: Answer) -> bytes:
    await anyio.sleep_forever()
    raise AssertionError("it slept for ever")


def answer_with(status: int, reason: str) -> Fault:
    async def fault(_answer: Answer) -> bytes:
        raise ApiError(status, reason, "on purpose")

    return fault


def late(seconds: float) -> Fault:
    """It is done at once, and said so only when the deadline is over: as to a process that was paused."""

    async def fault(answer: Answer) -> bytes:
        said = await answer()
        pause(seconds)
        return said

    return fault


class Line:
    """Between one process and the API server. `unheard`: what is asked arrives, and no answer comes back."""

    def __init__(self, api: Api) -> None:
        self.contact = Contact()
        self.failing: Failing | None = None
        self._api = api

    async def request(self, method: str, path: str, **given: Any) -> bytes:
        if self.failing == "refuses":
            raise Unreachable("refused")
        timeout = given.get("timeout", 30.0)
        with anyio.move_on_after(timeout):
            if self.failing == "hangs":
                await anyio.sleep_forever()
            if self.failing == "slow":
                await anyio.sleep(timeout * 0.9)
            answer = await self._api.request(method, path, **given)
            if self.failing == "unheard":
                await anyio.sleep_forever()
            return answer
        raise Unreachable("no answer")

    @asynccontextmanager
    async def stream(self, path: str, **given: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.failing == "refuses":
            raise Unreachable("refused")
        async with self._api.stream(path, **given) as lines:
            yield self._pass_on(lines)

    async def _pass_on(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            while self.failing is not None:  # noqa: ASYNC110 -- time passes at once
                await anyio.sleep(0.1)
            yield line


class Process:
    """One elector, term after term, as long as `running`."""

    def __init__(self, api: Api, identity: str) -> None:
        self.line = Line(api)
        self.elector = Elector(cast("Client", self.line), LEASE, identity)
        self.term = Term()
        self.terms = 0

    async def run(self) -> None:
        while True:
            self.terms += 1
            self.term = Term()
            await self.elector.run(self.term)

    async def follows(self) -> None:
        """Until it watches the Lease."""
        with anyio.fail_after(DEADLINE):
            while not self.elector.answered.is_set():  # noqa: ASYNC110 -- time passes at once
                await anyio.sleep(0.01)
        await anyio.sleep(0.01)

    async def led(self) -> Term:
        with anyio.fail_after(DEADLINE):
            while not self.term.leading:  # noqa: ASYNC110 -- time passes at once
                await anyio.sleep(0.005)
        return self.term


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for process in processes:
            tasks.start_soon(process.run)
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
def api() -> Api:
    return Api()


async def lost(term: Term) -> None:
    with anyio.fail_after(DEADLINE):
        await term.lost.wait()


async def written(api: Api, count: int) -> None:
    with anyio.fail_after(DEADLINE):
        while len(api.holders) < count:  # noqa: ASYNC110 -- time passes at once
            await anyio.sleep(0.005)


@in_timelapse
async def test_the_first_one_takes_it_and_goes_on_renewing(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        await written(api, 12)  # longer than its deadline
        assert one.term is term
        assert term.leading
    assert set(api.holders) == {"one"}


@in_timelapse
async def test_a_take_that_arrived_though_its_answer_was_lost_is_found_and_counted_once(api: Api) -> None:
    api.fail("POST", lose_the_answer)
    one = Process(api, "one")
    async with running(one):
        await one.led()
        assert api.lease is not None
        assert api.lease["spec"]["leaseTransitions"] == 0


@in_timelapse
async def test_a_renewal_that_arrived_though_its_answer_was_lost_does_not_end_the_lead(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", lose_the_answer)
        await written(api, 8)
        assert one.term is term
        assert term.leading


@in_timelapse
async def test_a_conflict_with_what_somebody_else_wrote_into_the_lease_does_not_end_the_lead(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        assert api.lease is not None
        api.fail("PUT", answer_with(409, "Conflict"), answer_with(409, "Conflict"))
        await written(api, 8)
        assert one.term is term


@in_timelapse
async def test_who_finds_another_in_the_lease_leads_no_more_at_once(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        await one.follows()
        assert api.lease is not None
        began = anyio.current_time()
        api.write({**api.lease["spec"], "holderIdentity": "other"})
        await lost(term)
        assert anyio.current_time() - began < 0.1  # it did not wait for its next renewal


@pytest.mark.parametrize("how", ["refuses", "hangs"])
@in_timelapse
async def test_who_cannot_renew_leads_no_more_before_another_may_take_it(api: Api, how: Failing) -> None:
    one, two = Process(api, "one"), Process(api, "two")
    async with running(one):
        term = await one.led()
        async with running(two):
            await two.follows()
            one.line.failing = how
            began = anyio.current_time()
            await lost(term)
            assert 8.0 <= anyio.current_time() - began <= 10.0
            assert "two" not in api.holders
            await two.led()
            assert 13.0 <= anyio.current_time() - began < 15.5
            one.line.failing = None
            await anyio.sleep(60.0)
            assert not one.term.leading
            assert two.terms == 1


@in_timelapse
async def test_an_answer_that_comes_after_the_deadline_makes_no_leader(api: Api) -> None:
    api.fail("POST", late(TIMING.deadline + 0.1))
    one = Process(api, "one")
    first = one.term
    async with running(one):
        with anyio.fail_after(DEADLINE):
            while one.terms < 2:
                first = one.term
                await anyio.sleep(0.005)
        assert not first.led.is_set()
        await one.led()


@in_timelapse
async def test_a_renewal_whose_answer_comes_after_the_deadline_ends_the_lead(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", late(TIMING.deadline + 0.1))
        await lost(term)
        assert not term.leading
        await one.led()
        assert one.term is not term


@in_timelapse
async def test_a_lease_that_is_deleted_is_made_again_by_its_holder_who_leads_on(api: Api) -> None:
    one, two = Process(api, "one"), Process(api, "two")
    async with running(one):
        term = await one.led()
        async with running(two):
            with anyio.fail_after(DEADLINE):
                await two.elector.answered.wait()
            before = len(api.holders)
            api.delete()
            await written(api, before + 8)
            assert one.term is term
            assert term.leading
    assert set(api.holders) == {"one"}


@in_timelapse
async def test_a_lease_that_is_deleted_after_its_holder_went_is_taken_after_its_duration(api: Api) -> None:
    api.write({"holderIdentity": "gone", "leaseDurationSeconds": 15, "leaseTransitions": 4})
    two = Process(api, "two")
    began = anyio.current_time()
    async with running(two):
        with anyio.fail_after(DEADLINE):
            await two.elector.answered.wait()
        api.delete()
        await two.led()
        assert 15.0 <= anyio.current_time() - began < 15.5
    assert api.lease is not None
    assert api.lease["spec"]["leaseTransitions"] == 5


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"holderIdentity": None, "leaseDurationSeconds": None, "acquireTime": None, "renewTime": None},
        {"holderIdentity": "", "leaseDurationSeconds": 2**31 - 1, "leaseTransitions": 2**31 - 1},
        {"holderIdentity": "one", "renewTime": "2999-01-01T00:00:00.000000Z"},
        {"leaseTransitions": -1, "strategy": "OldestEmulationVersion", "preferredHolder": "other"},
    ],
)
@in_timelapse
async def test_whatever_a_lease_without_another_holder_says_it_is_taken(api: Api, spec: dict[str, Any]) -> None:
    api.write(spec)
    one = Process(api, "one")
    async with running(one):
        await one.led()
        await written(api, 4)
    assert api.lease is not None
    assert 0 <= api.lease["spec"]["leaseTransitions"] < 2**31
    assert api.lease["spec"]["acquireTime"]


@in_timelapse
async def test_the_clock_of_another_machine_decides_nothing(api: Api) -> None:
    api.write({"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:00.000000Z"})
    one = Process(api, "one")
    began = anyio.current_time()
    async with running(one):
        await one.led()
    assert 15.0 <= anyio.current_time() - began < 15.5


@in_timelapse
async def test_a_lease_that_is_given_up_is_taken_at_once(api: Api) -> None:
    one, two = Process(api, "one"), Process(api, "two")
    async with anyio.create_task_group() as tasks:
        async with running(one):
            await one.led()
            tasks.start_soon(two.run)
            await two.follows()
        began = anyio.current_time()
        await one.elector.resign()
        await two.led()
        assert anyio.current_time() - began < 0.1
        tasks.cancel_scope.cancel()


@in_timelapse
async def test_who_resigns_without_an_answer_ends_in_time(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        await one.led()
    api.fail("GET", hang)
    began = anyio.current_time()
    await one.elector.resign()
    assert anyio.current_time() - began < 4.0


@in_timelapse
async def test_who_resigns_while_a_renewal_of_its_own_is_on_its_way_gives_up_all_the_same(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        await one.led()

    async def be_late(answer: Answer) -> bytes:
        assert api.lease is not None
        api.write({**api.lease["spec"], "renewTime": "2027-01-01T00:00:00.000000Z"})
        return await answer()

    api.fail("PUT", be_late)
    await one.elector.resign()
    assert api.lease is not None
    assert api.lease["spec"]["holderIdentity"] == ""


@in_timelapse
async def test_who_does_not_hold_it_gives_nothing_up(api: Api) -> None:
    api.write({"holderIdentity": "other", "leaseDurationSeconds": 15})
    await Process(api, "one").elector.resign()
    assert api.holders == ["other"]


@in_timelapse
async def test_two_with_one_identity_both_lead_which_is_why_each_adds_what_is_its_own(api: Api) -> None:
    one, two = Process(api, "same"), Process(api, "same")
    async with running(one, two):
        await one.led()
        await two.led()


@in_timelapse
async def test_confirm_returns_after_a_renewal_that_began_later(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        before = len(api.holders)
        began = anyio.current_time()
        with anyio.fail_after(DEADLINE):
            await term.confirm()
        assert len(api.holders) == before + 1
        assert anyio.current_time() - began < 0.1


@in_timelapse
async def test_confirm_fails_when_another_took_the_lease(api: Api) -> None:
    one = Process(api, "one")
    async with running(one):
        term = await one.led()
        assert api.lease is not None

        async def take_first(answer: Answer) -> bytes:
            assert api.lease is not None
            api.write({**api.lease["spec"], "holderIdentity": "other"})
            return await answer()

        api.fail("PUT", take_first)
        with anyio.fail_after(DEADLINE), pytest.raises(PgRoleError):
            await term.confirm()
        assert not term.leading


@in_timelapse
async def test_confirm_is_not_satisfied_by_a_renewal_that_was_under_way(api: Api) -> None:
    one = Process(api, "one")
    arrived, go_on = anyio.Event(), anyio.Event()

    async def wait(answer: Answer) -> bytes:
        said = await answer()
        arrived.set()
        await go_on.wait()
        return said

    confirmed = anyio.Event()

    async def confirm(term: Term) -> None:
        await term.confirm()
        confirmed.set()

    async with running(one):
        term = await one.led()
        api.fail("PUT", wait)
        with anyio.fail_after(DEADLINE):
            await arrived.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(confirm, term)
                await anyio.lowlevel.checkpoint()
                count = len(api.holders)
                go_on.set()
                await confirmed.wait()
        assert len(api.holders) > count


class World:
    """Two processes that keep to the rules, one Lease, and a clock that only the test moves.

    Each step is one thing that can happen: a process looks, takes or renews (and its answer may come late, or never),
    or time passes. A write holds from when it was sent, as far as whoever sent it knows: `until`.
    """

    TIMING = Timing()

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: tuple[Record, int] | None = None
        self.version = 0
        self.seen: dict[str, Seen | None] = {"a": None, "b": None}
        self.until = {"a": -1.0, "b": -1.0}
        self.sent: dict[str, tuple[float, Record, str | None] | None] = {"a": None, "b": None}

    def leading(self, name: str) -> bool:
        return self.now < self.until[name]

    def look(self, name: str) -> None:
        if self.stored is None:
            self.seen[name] = miss(self.seen[name])
        else:
            record, version = self.stored
            self.seen[name] = see(self.seen[name], record, str(version), self.now)

    def send(self, name: str) -> None:
        """Takes or renews, as far as the rules let it by what it has seen."""
        seen = self.seen[name]
        if seen is None or seen.record.holder == name or seen.free_at <= self.now:
            record = take(seen, name, self.TIMING, str(self.now))
            self.sent[name] = (self.now, record, seen.version if seen else None)

    def arrive(self, name: str, *, answered: bool) -> None:
        """What was sent comes to the API server, which may be long after."""
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
            self.seen[name] = see(self.seen[name], record, str(self.version), self.now)

    def delete(self) -> None:
        """By hand, while everybody has seen the Lease."""
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
def test_in_whatever_order_things_happen_never_do_two_lead_at_one_moment(steps: list[tuple[str, Any]]) -> None:
    world = World()
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


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0.1, 25.0)),
        st.tuples(st.just("pause"), st.floats(0.1, 30.0)),
        st.tuples(st.sampled_from(["refuses", "hangs", "unheard", "slow", "mend", "resign"]), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(EVENTS)
def test_whatever_fails_no_two_electors_lead_at_one_moment(events: list[tuple[str, Any]]) -> None:
    in_timelapse(fail_so)(events)


async def fail_so(events: list[tuple[str, Any]]) -> None:
    """Three electors; at the end, when all is well again, one leads and the Lease names it."""
    api = Api()
    processes = [Process(api, name) for name in ("one", "two", "three")]

    async def judge() -> None:
        while True:
            assert sum(process.term.leading for process in processes) <= 1
            await anyio.sleep(0.2)

    async with running(*processes), anyio.create_task_group() as judging:
        judging.start_soon(judge)
        for what, of in events:
            await happen(api, processes, what, of)
        for process in processes:
            process.line.failing = None
        await anyio.sleep(LONGEST_SECONDS)
        (leader,) = (process for process in processes if process.term.leading)
        assert api.lease is not None
        assert api.lease["spec"]["holderIdentity"] == leader.elector.identity
        judging.cancel_scope.cancel()


async def happen(api: Api, processes: list[Process], what: str, of: Any) -> None:
    if what == "wait":
        await anyio.sleep(of)
    elif what == "pause":
        pause(of)
        await anyio.lowlevel.checkpoint()
    elif what == "resign":
        if not processes[of].term.leading:  # whoever leads ends its work first
            await processes[of].elector.resign()
    elif what != "delete":
        processes[of].line.failing = None if what == "mend" else what
    elif api.lease is not None and all(process.line.failing is None for process in processes):
        # Who has not seen lately that it is held cannot know better: see the caveats.
        for process in processes:
            await process.follows()
        if api.lease is not None:
            api.delete()
