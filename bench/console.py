"""Measures the web console: memory and time to the first byte and to the whole page, with many roles and viewers.

`python -m bench.console [--roles 10000] [--viewers 1,20]` starts an API server of its own with these PgRoles, and the
console as its own process. Prints MiB (VmRSS), and seconds as the median of several requests.
"""

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from pgrole_controller.local.apiserver import ApiServer, api_server
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.workspace import free_port
from tests.integration.console_stand import CSRF, Accounts

PAGES = ("/", "/roles", "/roles?q=role-77", "/roles/bench/role-77", "/servers")
REPEATED = 5
AT_ONCE = 32
GOALS = {1: 120.0, 20: 200.0}  # MiB


@dataclass(frozen=True, slots=True)
class ConsoleProcess:
    pid: int
    url: str

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def fill(server: ApiServer, number: int) -> None:
    """Creates PgRoles with a status as the controller writes it."""
    await create_namespace(server, "bench")
    numbers = iter(range(number))
    path = "/apis/pgrole.dev/v1alpha1/namespaces/bench/pgroles"

    async def work() -> None:
        for n in numbers:
            made = await server.request("POST", path, _role(n))
            await server.request("PUT", f"{path}/role-{n}/status", {**made, "status": _status(n)})

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)


def _role(n: int) -> dict[str, Any]:
    return {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {"name": f"role-{n}"},
        "spec": {
            "name": f"bench_role_{n}",
            "serverRef": {"name": "main"},
            "login": True,
            "connectionLimit": n % 50,
            "memberOf": [{"role": f"bench_role_{n // 10}"}] if n else [],
            "parameters": {"statement_timeout": "30s"},
        },
    }


def _status(n: int) -> dict[str, Any]:
    time_of = "2026-11-22T10:00:00Z"
    ready = n % 20 != 0
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "Reconciled" if ready else "DriftReported",
        "message": "the role matches the spec" if ready else "connectionLimit differs",
        "lastTransitionTime": time_of,
        "observedGeneration": 1,
    }
    drift = {"time": time_of, "fields": ["superuser"], "corrected": True, "by": {"login": "alice", "proof": "Log"}}
    return {
        "observedGeneration": 1,
        "conditions": [condition],
        "role": {"name": f"bench_role_{n}", "oid": 20_000 + n, "applied": "0" * 64},
        "server": {"name": "main", "systemIdentifier": "7300000000000000000"},
        "driftCount": n % 7,
        "driftHistory": [drift] * (n % 4),
    }


@asynccontextmanager
async def running_console(server: ApiServer) -> AsyncIterator[ConsoleProcess]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pgrole_controller", "console", "--auth=token", f"--port={port}"),
        *(f"--api-server={server.url}", f"--certificate-authority={server.ca}", "--log-level=warning"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    found = ConsoleProcess(process.pid, f"http://127.0.0.1:{port}")
    try:
        async with aiohttp.ClientSession() as session:
            with anyio.fail_after(30):
                while not await _answers(session, f"{found.url}/healthz"):  # noqa: ASYNC110 - another process
                    await anyio.sleep(0.05)
        yield found
    finally:
        process.terminate()
        await process.wait()


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def log_in(session: aiohttp.ClientSession, token: str) -> None:
    async with session.get("/login") as answer:
        found = CSRF.search(await answer.text())
    csrf = found[1] if found is not None else ""
    async with session.post("/login", data={"csrf": csrf, "token": token}, allow_redirects=False) as answer:
        if answer.status != 303:
            raise RuntimeError(f"not logged in: {answer.status}")


async def time_page(session: aiohttp.ClientSession, path: str) -> tuple[float, float, int]:
    """Seconds to the first byte and to the last, and bytes."""
    began = time.perf_counter()
    async with session.get(path) as answer:
        first = time.perf_counter() - began
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
    return first, time.perf_counter() - began, len(body)


async def time_change(server: ApiServer, session: aiohttp.ClientSession, n: int) -> float:
    """Seconds from the answer to a write of a status until the page with it was fetched."""
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/bench/pgroles/role-{n}"
    obj = await server.request("GET", path)
    obj["status"]["driftCount"] = obj["status"].get("driftCount", 0) + 1
    async with session.get("/events", timeout=aiohttp.ClientTimeout(total=60)) as events:
        await events.content.readline()
        await server.request("PUT", f"{path}/status", obj)
        began = time.perf_counter()
        async for line in events.content:
            if line.startswith(b"data: ") and f"role/bench/role-{n}".encode() in line:
                break
        async with session.get("/", headers={"X-Fragment": "1"}) as answer:
            await answer.read()
        return time.perf_counter() - began


async def measure(server: ApiServer, viewers: int, tokens: list[str]) -> None:
    async with running_console(server) as console, AsyncExitStack() as stack:
        empty = console.memory
        sessions: list[aiohttp.ClientSession] = []
        for token in tokens[:viewers]:
            jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=console.url)
            session = await stack.enter_async_context(aiohttp.ClientSession(console.url, cookie_jar=jar))
            await log_in(session, token)
            cold = await time_page(session, "/roles")
            print(f"viewer {len(sessions) + 1}: first page {cold[1]:.2f} s, {console.memory:.0f} MiB", flush=True)
            sessions.append(session)
        for path in PAGES:
            times = [await time_page(sessions[0], path) for _ in range(REPEATED)]
            middle = statistics.median(whole for _, whole, _ in times)
            print(f"{re.sub('=.*', '', path):24} {middle:.3f} s, {times[0][2] / 1024:.0f} KiB")
        delays = [await time_change(server, sessions[0], n) for n in range(REPEATED)]
        print(f"a changed status is on the page {statistics.median(delays) * 1000:.0f} ms after its write (goal: 300)")
        goal = GOALS.get(viewers)
        against = f" (goal: {goal:.0f})" if goal else ""
        print(f"memory with {viewers} viewers: {console.memory:.0f} MiB{against}; without: {empty:.0f} MiB", flush=True)


async def run(roles: int, viewers: list[int]) -> None:
    async with api_server(binaries=await find(Display(sys.stderr))) as server:
        await apply_crds(server)
        began = time.perf_counter()
        await fill(server, roles)
        print(f"{roles} PgRoles created in {time.perf_counter() - began:.0f} s", flush=True)
        accounts = Accounts(server)
        tokens = [await accounts.create("bench", everything=True) for _ in range(max(viewers))]
        for number in viewers:
            await measure(server, number, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roles", type=int, default=10_000)
    parser.add_argument("--viewers", default="1,20")
    given = parser.parse_args()
    anyio.run(run, given.roles, [int(one) for one in given.viewers.split(",")])


if __name__ == "__main__":
    main()
