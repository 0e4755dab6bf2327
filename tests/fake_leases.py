"""A fake API server with one Lease and injected faults, and processes that compete for it."""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio

from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.election import Elector
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.lease import LeaseTiming, Term
from pgrole_controller.kube.transport import Reachability
from tests.timelapse import pause

LEASE = Key("pgrole-system", "pgrole-controller")
PATH = "/apis/coordination.k8s.io/v1/namespaces/pgrole-system/leases"
DEADLINE = 600.0
TIMING = LeaseTiming()

LeaseAnswer = Callable[[], Awaitable[bytes]]
LeaseFault = Callable[[LeaseAnswer], Awaitable[bytes]]
Failing = Literal["refuses", "hangs", "unheard", "slow"]


class LeaseApi:
    """One Lease, as an API server keeps it. `faults`: each for the next request with its verb.

    It passes the same contract tests as the real one (tests/integration/test_lease_contract.py).
    """

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 100
        self.faults: dict[str, deque[LeaseFault]] = {"GET": deque(), "PUT": deque(), "POST": deque()}
        self.holders: list[str] = []  # every holder that was written, in order
        self._moved = anyio.Event()
        self._history: list[tuple[int, dict[str, Any]]] = []

    def fail(self, verb: str, *faults: LeaseFault) -> None:
        self.faults[verb].extend(faults)

    def write(self, spec: dict[str, Any], **given: Any) -> bytes:
        """Creates or replaces the Lease, as another client would; `given`: of its metadata."""
        before = self.lease
        self.version += 1
        metadata = {**LEASE_METADATA, **given, "resourceVersion": str(self.version)}
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
        given = body["metadata"]
        if method == "POST":
            if self.lease is not None:
                raise ApiError(409, "AlreadyExists", "leases")
        elif self.lease is None:
            if "uid" in given:  # otherwise a PUT creates a Lease that is missing
                raise ApiError(409, "Conflict", "leases")
        elif given["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "leases")
        return self.write(body["spec"], **given)

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


async def lose_the_answer(answer: LeaseAnswer) -> bytes:
    """The request succeeds, but its answer is lost."""
    await answer()
    raise Unreachable("reset")


async def hang(_answer: LeaseAnswer) -> bytes:
    await anyio.sleep_forever()
    raise AssertionError("it slept forever")


def answer_with(status: int, reason: str) -> LeaseFault:
    async def fault(_answer: LeaseAnswer) -> bytes:
        raise ApiError(status, reason, "on purpose")

    return fault


def late(seconds: float) -> LeaseFault:
    """The request succeeds, but the answer arrives after the deadline, as at a paused process."""

    async def fault(answer: LeaseAnswer) -> bytes:
        said = await answer()
        pause(seconds)
        return said

    return fault


class LeaseLine:
    """The connection of one process to the API server. `unheard`: requests arrive, but their answers are lost."""

    def __init__(self, api: LeaseApi) -> None:
        self.reachability = Reachability()
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


class LeaseProcess:
    """One elector, term after term, while `running`."""

    def __init__(self, api: LeaseApi, identity: str) -> None:
        self.line = LeaseLine(api)
        self.elector = Elector(cast("Client", self.line), LEASE, identity)
        self.term = Term()
        self.terms = 0

    async def run(self) -> None:
        while True:
            self.terms += 1
            self.term = Term()
            await self.elector.run(self.term)

    async def follows(self) -> None:
        """Waits until it watches the Lease."""
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
async def running(*processes: LeaseProcess) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for process in processes:
            tasks.start_soon(process.run)
        yield
        tasks.cancel_scope.cancel()
