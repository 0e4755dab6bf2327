"""The elector, with an API server that fails in the ways each test requests."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.kube.lease import LONGEST_SECONDS, Term
from tests.fake_leases import (
    DEADLINE,
    TIMING,
    Failing,
    LeaseAnswer,
    LeaseApi,
    LeaseProcess,
    answer_with,
    hang,
    late,
    lose_the_answer,
    running,
)
from tests.timelapse import in_timelapse, pause


@pytest.fixture
def api() -> LeaseApi:
    return LeaseApi()


async def lost(term: Term) -> None:
    with anyio.fail_after(DEADLINE):
        await term.lost.wait()


async def unconfirmed(term: Term) -> None:
    with anyio.fail_after(DEADLINE):
        while term.leading:  # noqa: ASYNC110 -- time passes at once
            await anyio.sleep(0.005)


async def written(api: LeaseApi, count: int) -> None:
    with anyio.fail_after(DEADLINE):
        while len(api.holders) < count:  # noqa: ASYNC110 -- time passes at once
            await anyio.sleep(0.005)


@in_timelapse
async def test_the_first_elector_takes_the_lease_and_keeps_renewing_it(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        await written(api, 12)  # longer than its deadline
        assert one.term is term
        assert term.leading
    assert set(api.holders) == {"one"}


@in_timelapse
async def test_answers_that_are_no_lease_do_not_end_the_process(api: LeaseApi) -> None:
    async def no_lease(_: LeaseAnswer) -> bytes:
        return b'{"metadata": {}}'

    async def no_number(_: LeaseAnswer) -> bytes:
        return b'{"metadata": {"resourceVersion": "100"}, "spec": {"leaseDurationSeconds": "x"}}'

    api.fail("GET", no_lease, no_number)
    api.fail("PUT", no_lease, no_number)
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        await written(api, 6)
        assert one.term is term
        assert term.leading


@in_timelapse
async def test_an_elector_leads_although_the_answer_to_its_take_was_lost(api: LeaseApi) -> None:
    api.fail("POST", lose_the_answer)
    one = LeaseProcess(api, "one")
    async with running(one):
        await one.led()
        assert api.lease is not None
        assert api.lease["spec"]["leaseTransitions"] == 0


@in_timelapse
async def test_a_renewal_whose_answer_was_lost_does_not_end_the_term(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", lose_the_answer)
        await written(api, 8)
        assert one.term is term
        assert term.leading


@in_timelapse
async def test_a_conflict_during_a_renewal_does_not_end_the_term(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        assert api.lease is not None
        api.fail("PUT", answer_with(409, "Conflict"), answer_with(409, "Conflict"))
        await written(api, 8)
        assert one.term is term


@in_timelapse
async def test_a_leader_that_observes_another_holder_loses_its_term_at_once(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
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
async def test_a_leader_that_cannot_renew_stops_before_another_may_take_the_lease(api: LeaseApi, how: Failing) -> None:
    one, two = LeaseProcess(api, "one"), LeaseProcess(api, "two")
    async with running(one):
        term = await one.led()
        async with running(two):
            await two.follows()
            one.line.failing = how
            began = anyio.current_time()
            await unconfirmed(term)
            assert 8.0 <= anyio.current_time() - began <= 10.0
            assert "two" not in api.holders
            await two.led()
            assert 13.0 <= anyio.current_time() - began < 15.5
            assert not term.lost.is_set()
            assert not term.leading
            one.line.failing = None
            await lost(term)
            await anyio.sleep(60.0)
            assert not one.term.leading
            assert two.terms == 1


@pytest.mark.parametrize("how", ["refuses", "hangs", "unheard"])
@in_timelapse
async def test_a_term_continues_after_an_outage_in_which_no_other_elector_took_the_lease(
    api: LeaseApi, how: Failing
) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        await anyio.sleep(5.0)
        one.line.failing = how
        began = anyio.current_time()
        await unconfirmed(term)
        await anyio.sleep(50.0)
        assert not term.leading
        assert anyio.current_time() - began - 2.5 <= term.away <= anyio.current_time() - began + 2.5
        again = term.confirmed_again
        one.line.failing = None
        with anyio.fail_after(DEADLINE):
            await again.wait()
        assert one.term.leading
        assert one.term.away == 0.0
        assert one.terms == 1


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@in_timelapse
async def test_an_overloaded_api_server_counts_as_unreachable(api: LeaseApi, status: int) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", *[answer_with(status, "Overloaded")] * 40)
        await unconfirmed(term)
        await anyio.sleep(5.0)
        assert term.away > 5.0
        await one.led()
        assert one.terms == 1


@pytest.mark.parametrize("status", [401, 403, 422])
@in_timelapse
async def test_a_refused_renewal_does_not_count_as_an_outage_and_ends_the_term(api: LeaseApi, status: int) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", *[answer_with(status, "Refused")] * 100)
        began = anyio.current_time()
        with anyio.fail_after(DEADLINE):
            while not term.lost.is_set():
                assert term.away == 0.0
                await anyio.sleep(0.1)
        assert anyio.current_time() - began <= 10.0 + 10.0


@in_timelapse
async def test_a_refusal_ends_an_outage_at_once_and_then_the_term(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", *[answer_with(503, "Unavailable")] * 20, *[answer_with(403, "Forbidden")] * 100)
        await unconfirmed(term)
        assert term.away > 0.0
        with anyio.fail_after(DEADLINE):
            while api.faults["PUT"] and len(api.faults["PUT"]) > 99:
                assert term.away > 0.0
                await anyio.sleep(0.01)
        await anyio.sleep(0.01)
        seconds = term.away
        assert seconds == 0.0
        await lost(term)


@in_timelapse
async def test_refusals_while_the_api_server_starts_do_not_end_the_term(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", *[answer_with(503, "Unavailable")] * 30, *[answer_with(403, "Forbidden")] * 5)
        await unconfirmed(term)
        await one.led()
        assert one.term is term


@in_timelapse
async def test_a_missing_namespace_counts_as_a_refusal(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("POST", *[answer_with(404, "NotFound")] * 100)
        api.delete()
        await lost(term)
        assert term.away == 0.0


@in_timelapse
async def test_a_standby_knows_how_long_the_api_server_has_been_unreachable(api: LeaseApi) -> None:
    one, two = LeaseProcess(api, "one"), LeaseProcess(api, "two")
    async with running(one):
        await one.led()
        async with running(two):
            await two.follows()
            await anyio.sleep(5.0)
            began = anyio.current_time()
            two.line.failing = "hangs"
            with anyio.fail_after(DEADLINE):
                while two.term.away == 0.0:  # noqa: ASYNC110 -- time passes at once
                    await anyio.sleep(0.1)
            assert 14.0 <= anyio.current_time() - began <= 20.0
            assert two.term.away >= anyio.current_time() - began - 0.5
            term = two.term
            two.line.failing = None
            await anyio.sleep(10.0)
            assert two.term is term  # it has enforced nothing, and stands by as before
            assert term.away == 0.0


@pytest.mark.parametrize("gone", [False, True], ids=["the-leader-is-there", "the-leader-is-gone"])
@in_timelapse
async def test_a_standby_that_enforced_leads_after_the_outage_unless_another_process_leads(
    api: LeaseApi, gone: bool
) -> None:
    one, two = LeaseProcess(api, "one"), LeaseProcess(api, "two")
    async with running(one):
        await one.led()
        async with running(two):
            await two.follows()
            term = two.term
            two.line.failing = "refuses"
            with anyio.fail_after(DEADLINE):
                while term.away < 15.0:  # noqa: ASYNC110 -- time passes at once
                    await anyio.sleep(0.1)
            term.enforced = True
            if gone:
                one.line.failing = "refuses"
                await anyio.sleep(30.0)
            again = term.confirmed_again
            two.line.failing = None
            if gone:
                with anyio.fail_after(DEADLINE):
                    await again.wait()
                assert await two.led() is term
                assert term.stale  # until everything is listed again
            else:
                await lost(term)
                assert not term.led.is_set()
                await anyio.sleep(5.0)
                assert not two.term.leading


@in_timelapse
async def test_a_take_that_is_answered_after_the_deadline_starts_no_term(api: LeaseApi) -> None:
    api.fail("POST", late(TIMING.deadline + 0.1))
    one = LeaseProcess(api, "one")
    first = one.term
    async with running(one):
        with anyio.fail_after(DEADLINE):
            while one.terms < 2:
                first = one.term
                await anyio.sleep(0.005)
        assert not first.led.is_set()
        await one.led()


@in_timelapse
async def test_a_renewal_that_is_answered_after_the_deadline_does_not_confirm_the_term(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        api.fail("PUT", late(TIMING.deadline + 0.1))
        await unconfirmed(term)
        assert await one.led() is term


@in_timelapse
async def test_the_leader_creates_a_deleted_lease_again_and_keeps_its_term(api: LeaseApi) -> None:
    one, two = LeaseProcess(api, "one"), LeaseProcess(api, "two")
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
async def test_a_deleted_lease_of_a_vanished_holder_is_taken_only_after_its_duration(api: LeaseApi) -> None:
    api.write({"holderIdentity": "gone", "leaseDurationSeconds": 15, "leaseTransitions": 4})
    two = LeaseProcess(api, "two")
    began = anyio.current_time()
    async with running(two):
        with anyio.fail_after(DEADLINE):
            await two.elector.answered.wait()
        api.delete()
        await two.led()
        assert 15.0 <= anyio.current_time() - began < 15.5
    assert api.lease is not None
    assert api.lease["spec"]["leaseTransitions"] == 5


@in_timelapse
async def test_a_write_that_arrives_after_its_lease_was_deleted_takes_nothing(api: LeaseApi) -> None:
    async def too_late(answer: LeaseAnswer) -> bytes:
        api.write({"holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 1})
        api.delete()
        return await answer()

    api.write({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0})
    api.fail("PUT", too_late)
    two = LeaseProcess(api, "two")
    began = anyio.current_time()
    async with running(two):
        await two.led()
        assert anyio.current_time() - began >= 15.0
    assert api.lease is not None
    assert api.lease["spec"]["leaseTransitions"] == 2


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
async def test_a_lease_without_another_holder_is_taken_whatever_its_fields_contain(
    api: LeaseApi, spec: dict[str, Any]
) -> None:
    api.write(spec)
    one = LeaseProcess(api, "one")
    async with running(one):
        await one.led()
        await written(api, 4)
    assert api.lease is not None
    assert 0 <= api.lease["spec"]["leaseTransitions"] < 2**31
    assert api.lease["spec"]["acquireTime"]


@in_timelapse
async def test_a_lease_expires_by_the_local_clock_and_not_by_its_renew_time(api: LeaseApi) -> None:
    api.write({"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:00.000000Z"})
    one = LeaseProcess(api, "one")
    began = anyio.current_time()
    async with running(one):
        await one.led()
    assert 15.0 <= anyio.current_time() - began < 15.5


@in_timelapse
async def test_a_released_lease_is_taken_at_once(api: LeaseApi) -> None:
    one, two = LeaseProcess(api, "one"), LeaseProcess(api, "two")
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
async def test_resigning_ends_in_time_if_the_api_server_does_not_answer(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        await one.led()
    api.fail("GET", hang)
    began = anyio.current_time()
    await one.elector.resign()
    assert anyio.current_time() - began < 4.0


@in_timelapse
async def test_resigning_releases_the_lease_despite_a_renewal_in_flight(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        await one.led()

    async def be_late(answer: LeaseAnswer) -> bytes:
        assert api.lease is not None
        api.write({**api.lease["spec"], "renewTime": "2027-01-01T00:00:00.000000Z"})
        return await answer()

    api.fail("PUT", be_late)
    await one.elector.resign()
    assert api.lease is not None
    assert api.lease["spec"]["holderIdentity"] == ""


@in_timelapse
async def test_resigning_without_holding_the_lease_writes_nothing(api: LeaseApi) -> None:
    api.write({"holderIdentity": "other", "leaseDurationSeconds": 15})
    await LeaseProcess(api, "one").elector.resign()
    assert api.holders == ["other"]


@in_timelapse
async def test_two_electors_with_the_same_identity_both_lead(api: LeaseApi) -> None:
    one, two = LeaseProcess(api, "same"), LeaseProcess(api, "same")
    async with running(one, two):
        await one.led()
        await two.led()


@in_timelapse
async def test_confirm_returns_after_a_renewal_that_began_later(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        before = len(api.holders)
        began = anyio.current_time()
        with anyio.fail_after(DEADLINE):
            await term.confirm()
        assert len(api.holders) == before + 1
        assert anyio.current_time() - began < 0.1


@in_timelapse
async def test_confirm_fails_when_another_took_the_lease(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    async with running(one):
        term = await one.led()
        assert api.lease is not None

        async def take_first(answer: LeaseAnswer) -> bytes:
            assert api.lease is not None
            api.write({**api.lease["spec"], "holderIdentity": "other"})
            return await answer()

        api.fail("PUT", take_first)
        with anyio.fail_after(DEADLINE), pytest.raises(PgRoleError):
            await term.confirm()
        assert not term.leading


@in_timelapse
async def test_confirm_is_not_satisfied_by_a_renewal_already_in_progress(api: LeaseApi) -> None:
    one = LeaseProcess(api, "one")
    arrived, go_on = anyio.Event(), anyio.Event()

    async def wait(answer: LeaseAnswer) -> bytes:
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
def test_two_electors_never_lead_at_the_same_time_whatever_fails(events: list[tuple[str, Any]]) -> None:
    in_timelapse(fail_so)(events)


async def fail_so(events: list[tuple[str, Any]]) -> None:
    """Runs three electors: once every failure is over, exactly one leads and the Lease names it."""
    api = LeaseApi()
    processes = [LeaseProcess(api, name) for name in ("one", "two", "three")]

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


async def happen(api: LeaseApi, processes: list[LeaseProcess], what: str, of: Any) -> None:
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
        # An elector that has not observed the Lease recently cannot know that it is held: see the caveats.
        for process in processes:
            await process.follows()
        if api.lease is not None:
            api.delete()
