"""Watches resume as soon as an API server that was unreachable answers any request, and do not press one that works."""

import json
from typing import cast

import anyio
import pytest

from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.kube.reflector import DEFAULT, reflect
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.transport import SILENT_SECONDS, Reachability
from tests.timelapse import in_timelapse

DEADLINE = 600.0


class Away:
    """An API server that does not answer until `there` is set."""

    def __init__(self) -> None:
        self.reachability = Reachability(anyio.current_time)
        self.there = False
        self.asked: list[float] = []

    async def request(self, *_: object, **__: object) -> bytes:
        self.asked.append(anyio.current_time())
        if not self.there:
            self.reachability.note_failure()
            raise Unreachable("refused")
        self.reachability.note_answer(200)
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()

    def stream(self, *_: object, **__: object) -> object:
        raise Unreachable("refused")

    async def answer_another(self) -> None:
        self.there = True
        await self.request()
        self.asked.pop()


@in_timelapse
async def test_after_a_long_outage_objects_are_listed_as_soon_as_any_request_is_answered() -> None:
    api, store = Away(), Store()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reflect, cast("Client", api), PGROLES, store, lambda _: None)
            while len(api.asked) < 9:  # noqa: ASYNC110 -- time passes at once
                await anyio.sleep(0.1)
            last, now = api.asked[-1], anyio.current_time()
            assert now - last < DEFAULT.backoff_most / 2  # the shortest wait of its own back-off
            await api.answer_another()
            await store.synced.wait()
            assert anyio.current_time() == now
            tasks.cancel_scope.cancel()


def of(clock: list[float]) -> Reachability:
    return Reachability(lambda: clock[0])


async def is_back(reachability: Reachability, *statuses: int) -> bool:
    """Whether one of these answers ends a wait."""
    ended = False

    async def wait() -> None:
        nonlocal ended
        await reachability.wait_until_back()
        ended = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        for status in statuses:
            reachability.note_answer(status)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return ended


async def test_a_failure_while_other_requests_are_answered_is_not_an_outage() -> None:
    clock = [0.0]
    reachability = of(clock)
    for clock[0] in (1.0, 3.0, 5.0, 7.0):
        reachability.note_answer(200)
        reachability.note_failure()
        assert not await is_back(reachability, 200)


async def test_an_outage_behind_a_proxy_ends_with_the_first_answer_of_the_api_server() -> None:
    clock = [0.0]
    reachability = of(clock)
    for clock[0] in (SILENT_SECONDS, 2 * SILENT_SECONDS):
        reachability.note_answer(503)
    assert await is_back(reachability, 502, 200)
    assert not await is_back(reachability, 503, 200)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_server_that_is_overloaded_or_starts_does_not_end_an_outage(status: int) -> None:
    clock = [0.0]
    reachability = of(clock)
    clock[0] = SILENT_SECONDS
    reachability.note_failure()
    assert not await is_back(reachability, status)
    assert await is_back(reachability, status, 404)
    assert not await is_back(reachability, 200)  # once per outage
