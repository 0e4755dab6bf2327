"""A signal can be used again, and wakes every waiter."""

import anyio
import pytest

from pgrole_controller.signals import Signal, unless

DEADLINE = 30.0


async def count_wakes(signal: Signal, wakes: list[int], name: int) -> None:
    await signal.wait()
    wakes.append(name)


async def test_a_pulse_wakes_all_present_waiters_and_no_later_ones() -> None:
    signal, wakes = Signal(), list[int]()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            for name in (1, 2):
                tasks.start_soon(count_wakes, signal, wakes, name)
            await anyio.wait_all_tasks_blocked()
            signal.pulse()
            await anyio.wait_all_tasks_blocked()
            assert sorted(wakes) == [1, 2]
            assert not signal.is_set()
            tasks.start_soon(count_wakes, signal, wakes, 3)
            await anyio.wait_all_tasks_blocked()
            assert 3 not in wakes
            signal.pulse()
    assert wakes[-1] == 3


async def test_a_signal_set_before_anyone_waits_stays_set_until_it_is_cleared() -> None:
    signal = Signal()
    signal.set()
    with anyio.fail_after(DEADLINE):
        await signal.wait()
        await signal.wait()
    assert signal.is_set()
    signal.clear()
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await signal.wait()


async def test_clearing_a_signal_does_not_strand_a_waiter() -> None:
    signal, wakes = Signal(), list[int]()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_wakes, signal, wakes, 1)
            await anyio.wait_all_tasks_blocked()
            signal.clear()
            signal.set()
    assert wakes == [1]


async def test_a_call_ends_with_its_answer_its_error_or_when_it_is_asked_to() -> None:
    asked = anyio.Event()

    async def answer() -> str:
        return "answer"

    async def fail() -> str:
        raise ValueError("wrong")

    async def hang() -> str:
        asked.set()
        await anyio.sleep_forever()
        return "never"

    assert await unless(asked, answer) == "answer"
    with pytest.raises(ValueError, match="wrong"):
        await unless(asked, fail)
    assert await unless(asked, hang) is None
