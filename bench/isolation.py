"""`python -m bench.isolation`: how long a repair takes on healthy servers, alone and while other servers misbehave.

Measures the healthy servers alone and together with the others in alternation, so that other load on this machine
affects both. The tenant attacks in both phases: its server keeps a core busy whether the controller knows that server
or not. `bench.hostile` contains the attackers. A drift begins when its COMMIT has returned to the client, and is
repaired when the transaction that wrote the role's row committed (track_commit_timestamp), on the same clock.
"""

import argparse
import os
import random
import statistics
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg

from bench.floors import READ_ROLE, time_rounds
from bench.hostile import attacking, leave_processor, serving_hostile, yield_processor
from bench.neighbours import SMALL, Neighbour, neighbours
from bench.processes import cpu_seconds, read_status
from bench.quantities import Quantiles
from pgrole_controller.local.apiserver import ApiServer, api_server
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer, postgres
from pgrole_controller.local.process import Process, reached, tied_to_parent
from pgrole_controller.postgres.watch import CHANNEL, EVERYTHING, read_payload

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

NAMESPACE = "bench"
HEALTHY = 14
ROLES = 10  # on each server
ATTACKED = "attacked"
#: Matches any condition message that reports a fault.
ANY_FAULT = " "

_SECONDS = 120.0
_FLOOR_ROUNDS = 100
_GROUP = "/apis/pgrole.dev/v1alpha1"
_REPAIRED_AT = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(a.xmin))::float8
FROM pg_authid AS a WHERE a.rolname = $1 AND NOT a.rolcreatedb
"""


@dataclass(slots=True)
class Probe:
    """Makes drifts on one healthy server, and listens to its notifications."""

    connection: Connection
    listener: Connection
    expected: str = ""
    heard: anyio.Event = field(default_factory=anyio.Event)

    def hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        names = read_payload(str(payload)).roles
        if names is EVERYTHING or self.expected in names:
            self.heard.set()

    async def measure(self, role: str) -> float:
        """Returns the seconds from a drift's commit to its repair's commit."""
        self.expected, self.heard = role, anyio.Event()
        await self.connection.execute(f"ALTER ROLE {role} CREATEDB")
        began = time.time()
        with anyio.fail_after(_SECONDS):
            while True:
                await self._wait()  # the drift and its repair both notify, perhaps at once
                repaired = await self.connection.fetchval(_REPAIRED_AT, role)
                if repaired is not None:
                    return float(repaired) - began

    async def _wait(self) -> None:
        with anyio.move_on_after(0.02):
            await self.heard.wait()
        self.heard = anyio.Event()

    async def measure_floor(self) -> float:
        """Sums three medians, in seconds: a NOTIFY received on another connection, one role read, one ALTER ROLE
        committed.
        """

        def alter(turn: int) -> Awaitable[object]:
            return self.connection.execute(f"ALTER ROLE bench_floor {'NOCREATEDB' if turn % 2 else 'CREATEDB'}")

        await self.connection.execute("CREATE ROLE bench_floor")
        took = await time_rounds(
            self.connection,
            self.listener,
            lambda: self.connection.fetch(READ_ROLE, "bench_floor"),
            alter,
            rounds=_FLOOR_ROUNDS,
            pause=lambda: 0.05,
        )
        medians: list[float] = [statistics.median(each) for each in zip(*took, strict=True)]
        return sum(medians)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared PgServers and their PgRoles."""

    api: ApiServer

    async def add(self, name: str, port: int, password: str, **spec: Any) -> None:  # noqa: ANN401 -- fields of PgRoles
        credentials = {"username": SUPERUSER, "password": password}
        data = {key: b64encode(value.encode()).decode() for key, value in credentials.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        await self._apply(f"/api/v1/namespaces/default/secrets/{name}", secret)
        connection = {
            "hosts": ["127.0.0.1"],
            "port": port,
            "sslMode": "disable",
            "credentialsSecretRef": {"name": name},
        }
        allow = {"namespaces": {"matchNames": ["*"]}, "roleNames": ["*"], "adopt": True}
        await self._apply(
            f"{_GROUP}/pgservers/{name}", _object("PgServer", name, {"connection": connection, "allow": allow})
        )
        for number in range(ROLES):
            role = _object("PgRole", f"{name}-{number}", {"name": _role(number), "serverRef": {"name": name}, **spec})
            await self._apply(f"{_GROUP}/namespaces/{NAMESPACE}/pgroles/{name}-{number}", role)

    async def remove(self, names: Iterable[str]) -> None:
        """Deletes them, and waits until they no longer exist."""
        for name in names:
            for number in range(ROLES):
                await self.api.request("DELETE", f"{_GROUP}/namespaces/{NAMESPACE}/pgroles/{name}-{number}")
            await self.api.request("DELETE", f"{_GROUP}/pgservers/{name}")
        await self._wait(partial(self._are_gone, set(names)), "were not gone")

    async def wait(self, words: Mapping[str, str]) -> None:
        """Waits until each PgServer's condition contains its text or, if that is empty, it and all its roles are
        Ready.
        """
        await self._wait(partial(self._say, words), "did not say what was expected")

    async def _apply(self, path: str, body: dict[str, Any]) -> None:
        query = {"fieldManager": "bench", "force": "true"}
        await self.api.request("PATCH", path, body, content_type="application/apply-patch+yaml", query=query)

    async def _are_gone(self, names: set[str]) -> bool:
        servers = (await self.api.request("GET", f"{_GROUP}/pgservers"))["items"]
        return not names & {one["metadata"]["name"] for one in servers}

    async def _say(self, words: Mapping[str, str]) -> bool:
        servers = (await self.api.request("GET", f"{_GROUP}/pgservers"))["items"]
        roles = (await self.api.request("GET", f"{_GROUP}/namespaces/{NAMESPACE}/pgroles"))["items"]
        ready = {name for name in words if not words[name]}
        return all(_says(one, words[one["metadata"]["name"]]) for one in servers) and all(
            _says(one, "") for one in roles if one["spec"]["serverRef"]["name"] in ready
        )

    async def _wait(self, true: Any, what: str) -> None:  # noqa: ANN401 -- a condition
        if not await reached(true, _SECONDS, every=0.2):
            kinds = ("pgservers", f"namespaces/{NAMESPACE}/pgroles")
            found = "\n".join([await self._describe(kind) for kind in kinds])
            raise AssertionError(f"the servers {what} within {_SECONDS:.0f} s; not Ready are\n{found}")

    async def _describe(self, what: str) -> str:
        """Lists what is not Ready, with the reason."""
        found = []
        for one in (await self.api.request("GET", f"{_GROUP}/{what}"))["items"]:
            conditions = one.get("status", {}).get("conditions", [])
            ready = next((each for each in conditions if each["type"] == "Ready"), None)
            if ready is None or ready["status"] != "True":
                text = f"{ready['reason']}: {ready['message']}" if ready else "nothing"
                found.append(f"  {one['metadata']['name']} {text[:300]}")
        return "\n".join(found)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "pgrole.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _says(obj: dict[str, Any], words: str) -> bool:
    conditions = obj.get("status", {}).get("conditions", [])
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    if ready is None:
        return False
    return ready["status"] == "False" and words in ready["message"] if words else ready["status"] == "True"


def _role(number: int) -> str:
    return f"bench_{number}"


def _start(settings: Mapping[str, str]) -> AbstractAsyncContextManager[PostgresServer]:
    return postgres(settings=settings)


@asynccontextmanager
async def _probe(server: PostgresServer) -> AsyncIterator[Probe]:
    connection, listener = [await asyncpg.connect(server.dsn()) for _ in range(2)]
    probe = Probe(connection, listener)
    await listener.add_listener(CHANNEL, probe.hear)
    try:
        yield probe
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close(timeout=5)
            await listener.close(timeout=5)


async def _drift(probes: Sequence[Probe], drifts: int, display: Display) -> list[float]:
    """Uses each role in turn: the controller slows down repairs of a role that keeps drifting."""
    roles = [(probe, _role(number)) for probe in probes for number in range(ROLES)]
    random.shuffle(roles)
    took = []
    for turn, (probe, role) in enumerate(islice(cycle(roles), drifts)):
        took.append(await probe.measure(role))
        display.advance(f"{turn + 1} of {drifts} drifts")
        await anyio.sleep(random.uniform(0.1, 0.35))  # hits any phase of the watch
    return took


@dataclass(frozen=True, slots=True)
class IsolationRun:
    declared: Declared
    probes: Sequence[Probe]
    others: Sequence[Neighbour]
    attacked: PostgresServer
    controller: Process
    display: Display

    async def measure(self, rounds: int, drifts: int) -> str:
        alone: list[float] = []
        beside: list[float] = []
        healthy = dict.fromkeys((f"s{number}" for number in range(len(self.probes))), "")
        lines, size, minutes = 0, 0, 0.0
        shares: list[list[float]] = [[], []]
        await self.controller.start()
        await self.declared.wait(healthy)
        for _ in range(rounds):
            async with attacking(await self._let_in(), self.controller.log.parent):
                with self._share(shares[0]):
                    alone += await _drift(self.probes, drifts, self.display)
            for other in self.others:
                await self.declared.add(other.name, other.port, other.password)
            await self.declared.add(ATTACKED, self.attacked.port, self.attacked.password, login=True, adopt=True)
            words = {other.name: other.words for other in self.others}
            await self.declared.wait({**healthy, **words, ATTACKED: ""})
            before, began = self._log(), time.monotonic()
            async with attacking(await self._let_in(), self.controller.log.parent):
                with self._share(shares[1]):
                    beside += await _drift(self.probes, drifts, self.display)
            after = self._log()
            minutes += (time.monotonic() - began) / 60
            lines, size = lines + after[0] - before[0], size + after[1] - before[1]
            await self.declared.remove([*words, ATTACKED])
        memory = read_status(self.controller.pid, "VmHWM")
        await self.controller.stop()
        floor = await self.probes[0].measure_floor()
        report = _report(Quantiles.of(alone), Quantiles.of(beside), floor, len(self.probes), len(self.others) + 1)
        return "\n".join(
            (
                report,
                f"log: {lines / minutes:.0f} lines a minute about sessions of the {len(self.others) + 1}, "
                f"{size / minutes / 1e6:.2f} MB a minute in all",
                "CPU of the controller, in percent of one core: alone {:.1f}, beside them {:.1f}".format(
                    *map(statistics.fmean, shares)
                ),
                f"memory of the controller at its peak: {memory / (1 << 20):.0f} MiB",
            )
        )

    @contextmanager
    def _share(self, into: list[float]) -> Iterator[None]:
        """Appends the controller's CPU during the context, in percent of one core."""
        began, before = time.monotonic(), cpu_seconds(self.controller.pid)
        yield
        into.append(100 * (cpu_seconds(self.controller.pid) - before) / (time.monotonic() - began))

    async def _let_in(self) -> str:
        """Returns the tenant's DSN; its role is one of those declared later."""
        connection = await asyncpg.connect(self.attacked.dsn())
        try:
            await connection.execute(f"DO $$ BEGIN CREATE ROLE {_role(0)}; EXCEPTION WHEN duplicate_object THEN END $$")
            await connection.execute(f"ALTER ROLE {_role(0)} RESET ALL; ALTER ROLE {_role(0)} LOGIN PASSWORD 'tenant'")
        finally:
            await connection.close(timeout=5)
        return self.attacked.dsn(_role(0), password="tenant")

    def _log(self) -> tuple[int, int]:
        """Number of log lines about sessions, and size of the log in bytes."""
        text = self.controller.log.read_bytes()
        return sum(b"PostgreSQL" in line for line in text.splitlines()), len(text)


def _report(alone: Quantiles, beside: Quantiles, floor: float, healthy: int, others: int) -> str:
    return "\n".join(
        (
            f"commit of a drift to commit of its repair, {healthy} healthy servers with {ROLES} roles each, ms",
            f"  alone                      {_spell(alone)}",
            f"  beside {others} that misbehave   {_spell(beside)}",
            f"  ratio                      p50 {beside.p50 / alone.p50:.2f}  p99 {beside.p99 / alone.p99:.2f}",
            f"  floor (NOTIFY, read, ALTER through bare connections, same run)  p50 {floor * 1000:.2f}",
        )
    )


def _spell(quantiles: Quantiles) -> str:
    return f"p50 {quantiles.p50:.2f}  p99 {quantiles.p99:.2f}"


async def measure(rounds: int, drifts: int) -> str:
    leave_processor()
    display = Display(sys.stderr)
    binaries = await find(display)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pgrole-bench-")))
        ports = await stack.enter_async_context(serving_hostile(folder))
        hostile = (Neighbour(kind, port, "any", ANY_FAULT) for kind, port in ports.items())
        others = (*await stack.enter_async_context(neighbours(_start)), *hostile)
        attacked = await stack.enter_async_context(_start(SMALL))
        yield_processor(int((attacked.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]))
        healthy = [await stack.enter_async_context(_start(SMALL)) for _ in range(HEALTHY)]
        probes = [await stack.enter_async_context(_probe(server)) for server in healthy]
        api = await stack.enter_async_context(api_server(binaries=binaries))
        await apply_crds(api)
        await create_namespace(api, NAMESPACE)
        declared = Declared(api)
        for number, server in enumerate(healthy):
            await declared.add(f"s{number}", server.port, server.password)
        controller = _controller(api, folder)
        stack.push_async_callback(controller.stop)
        return await IsolationRun(declared, probes, others, attacked, controller, display).measure(rounds, drifts)


def _controller(api: ApiServer, folder: Path) -> Process:
    command: list[str | Path] = [
        *(sys.executable, "-m", "pgrole_controller", "run", "--kubeconfig", api.kubeconfig),
        *("--health-port", "0", "--log-format", "json"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PGROLE_DSN"}
    return Process("controller", tied_to_parent(command), folder / "controller.log", environment)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.isolation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often with and without those that misbehave")
    parser.add_argument("--drifts", type=int, default=100, help="how many drifts in each half of a round")
    given = parser.parse_args()
    print(anyio.run(measure, given.rounds, given.drifts))


if __name__ == "__main__":
    main()
