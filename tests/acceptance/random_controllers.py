"""How the controller of a random history runs: alone or as two replicas, with which server, role and API server."""

import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import anyio
from aiohttp import web

from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from tests.acceptance.relay import Relay, relay_of
from tests.acceptance.replicas import LEADS, LEASES
from tests.acceptance.service_account import ServiceAccount, installation_for
from tests.acceptance.waiting import Attempts
from tests.acceptance.world import PATIENCE, Controller, Stage
from tests.fake_apiserver import refuse


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What stays the same during one history.

    - `replicas`: 1, or 2 with leader election.
    - `relayed`: requests to the API server fail at random.
    - `declared`: the server is a PgServer, whose policy changes.
    - `restricted`: the controller's role is no superuser; it polls databases.
    - `installs`: it may create schema pgrole in the home database.
    - `restarts`: at the end, it is restarted while there is nothing to do.
    """

    replicas: int
    relayed: bool
    declared: bool
    restricted: bool
    installs: bool
    restarts: bool

    @classmethod
    def choose(cls, dice: random.Random, version: int) -> "Circumstances":
        """Before PostgreSQL 16, a role that is no superuser does not get the privileges of those that it creates."""
        restricted = version >= 16 and dice.random() < 0.3
        installs = not restricted or dice.random() < 0.7
        return cls(
            replicas=dice.choice([1, 1, 2]),
            relayed=dice.random() < 0.4,
            declared=dice.random() < 0.5,
            restricted=restricted,
            installs=installs,
            restarts=dice.random() < 0.3,
        )


class FaultyRelay(Relay):
    """`dice` None: no faults."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        super().__init__(server, session)
        self.dice: random.Random | None = None
        self._watches: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        dice, watches = self.dice, request.query.get("watch") == "true"
        if watches:
            self._watches = [one for one in self._watches if one.transport is not None]
            self._watches.append(request)
        if dice is None or dice.random() > 0.1:
            return await super().answer(request)
        if watches:
            return await refuse(*dice.choice([(410, "Expired"), (500, "InternalError"), (429, "TooManyRequests")]))(
                request
            )
        if dice.random() < 0.5:
            if request.method == "GET":
                return await refuse(*dice.choice([(500, "InternalError"), (503, "ServiceUnavailable")]))(request)
            return await refuse(*dice.choice([(409, "Conflict"), (500, "InternalError")]))(request)
        await super().answer(request)  # it is done, but no one learns of it
        if dice.random() < 0.5:
            return await refuse(500, "InternalError")(request)
        return self._cut(request)

    def cut_watches(self) -> None:
        for request in self._watches:
            self._cut(request)
        self._watches.clear()

    def _cut(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)


@dataclass(slots=True)
class RandomControllers:
    """`running`: one controller for each replica. `ended`: those that were killed."""

    stage: Stage
    dice: random.Random
    circumstances: Circumstances
    dsn: str
    relay: FaultyRelay | None
    log: list[str]
    running: list[Controller] = field(default_factory=list)
    ended: list[Controller] = field(default_factory=list)
    frozen: Controller | None = None

    async def start(self) -> None:
        while len(self.running) < self.circumstances.replicas:
            made = self._make()
            await made.start()
            self.running.append(made)

    async def stop(self) -> None:
        for one in self.running:
            await one.stop()

    async def kill(self) -> None:
        """Kills one, or all. They are missing until `start`."""
        for one in self.dice.choice([self.running, self.running[:1], self.running[-1:]])[:]:
            self.log.append("a controller is killed")
            await one.kill()
            self.running.remove(one)
            self.ended.append(one)
        if self.dice.random() < 0.8:
            await self._free_lease()

    async def freeze(self) -> None:
        """Freezes one until `resume`. Another one may lead meanwhile."""
        self.log.append("a controller is frozen")
        self.frozen = self.dice.choice(self.running)
        self.frozen.process.pause()
        if self.dice.random() < 0.8:
            await self._free_lease()

    def resume(self) -> None:
        if self.frozen is not None and self.frozen.process.running:
            self.log.append("the controller continues")
            self.frozen.process.resume()
        self.frozen = None

    async def find_leader(self) -> Controller:
        """Waits until one leads."""
        with anyio.fail_after(PATIENCE):
            async for _ in Attempts():
                for one in self.running:
                    if LEADS in one.log:
                        return one
        raise AssertionError("no controller leads")

    def fail_api_server(self, *, fails: bool) -> None:
        if self.relay is not None:
            self.relay.dice = random.Random(self.dice.random()) if fails else None

    def find_tracebacks(self) -> list[Path]:
        return [one.process.log for one in (*self.ended, *self.running) if "Traceback" in one.log]

    async def _free_lease(self) -> None:
        """Does as if its duration were over, which takes long."""
        if self.circumstances.replicas == 1:
            return
        path = f"{LEASES}/{installation_for(self.stage.kube.namespace).name}"
        body = {"spec": {"holderIdentity": ""}}
        self.log.append("the Lease is freed")
        try:
            await self.stage.kube.server.request("PATCH", path, body, content_type="application/merge-patch+json")
        except LocalApiError as error:
            if error.status != 404:
                raise

    def _make(self) -> Controller:
        kube, folder = self.stage.kube, Path(tempfile.mkdtemp(dir=self.stage.folder))
        url = self.relay.url if self.relay is not None else ""
        account = ServiceAccount(kube.server, installation_for(kube.namespace), folder, url)
        detection = "Poll" if self.circumstances.restricted else "Auto"
        election = ("--leader-election", "true") if self.circumstances.replicas > 1 else ()
        return Controller(
            account,
            "" if self.circumstances.declared else self.dsn,
            folder,
            *("--namespace", kube.namespace, "--poll-interval", "200ms", *election),
            PGROLE_DATABASES_DETECTION=detection,
        )


@asynccontextmanager
async def faulty_relay(server: ApiServer, *, used: bool) -> AsyncIterator[FaultyRelay | None]:
    if not used:
        yield None
        return
    async with relay_of(FaultyRelay, server) as made:
        yield made
