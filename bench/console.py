"""Measures the web console: memory, time to the whole page, and first paint in Chromium, with many roles and viewers.

`python -m bench.console [--roles 10000] [--viewers 1,20] [--json FILE]` starts an API server of its own with these
PgRoles, and the console as its own process. Prints MiB (VmRSS), and seconds as the median of several requests.
"""

import argparse
import asyncio
import json
import os
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
from playwright.async_api import Browser, async_playwright

from bench.processes import read_status
from pgrole_controller.local.apiserver import ApiServer, api_server
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.workspace import free_port
from tests.browser.conftest import ARGUMENTS, find_chromium
from tests.integration.console_stand import CSRF, Accounts

PAGES = ("/", "/roles", "/roles?q=role-77", "/roles/bench/role-77", "/servers")
REPEATED = 5
AT_ONCE = 32
#: Milliseconds since the navigation began, at the click.
FIRST_PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) resolve(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""
#: Milliseconds since 1970 when the frame after the page got this text was painted.
NOTE_PAINT = """(text) => {
  const main = document.getElementById("main");
  globalThis.painted = new Promise((resolve) => new MutationObserver(() => {
    if (main.textContent.includes(text)) requestAnimationFrame(() => setTimeout(() => resolve(Date.now())));
  }).observe(main, { subtree: true, childList: true, characterData: true }));
}"""
GOALS = {1: 120.0, 20: 200.0}  # MiB


@dataclass(frozen=True, slots=True)
class ConsoleProcess:
    pid: int
    url: str

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        return read_status(self.pid, "VmRSS") / 2**20


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


async def time_paint(browser: Browser, url: str, token: str) -> float:
    """Seconds from the click on "Sign in" until Chromium painted the overview, before anything was listed."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{url}/login")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Overview").wait_for()
    painted = await page.evaluate(FIRST_PAINT)
    await context.close()
    return float(painted) / 1000


async def time_change_in_browser(server: ApiServer, browser: Browser, url: str, token: str, n: int) -> float:
    """Seconds from the answer to a write of a status until Chromium painted the open page of the role with it."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{url}/login")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Overview").wait_for()
    await page.goto(f"{url}/roles/bench/role-{n}")
    await page.locator("#live-words", has_text="Live").wait_for()
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/bench/pgroles/role-{n}"
    obj = await server.request("GET", path)
    count = int(obj["status"].get("driftCount") or 0) + 777_000
    obj["status"]["driftCount"] = count
    await page.evaluate(NOTE_PAINT, f"{count:,}")
    await server.request("PUT", f"{path}/status", obj)
    written = time.time()
    painted = float(await page.evaluate("globalThis.painted")) / 1000
    await context.close()
    return max(painted - written, 0.0)


async def measure(server: ApiServer, browser: Browser, viewers: int, tokens: list[str]) -> dict[str, Any]:
    async with running_console(server) as console, AsyncExitStack() as stack:
        empty = console.memory
        paint = await time_paint(browser, console.url, tokens[0])
        print(f"first paint after signing in {paint:.2f} s (goal: 1)", flush=True)
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
        changes = [
            await time_change_in_browser(server, browser, console.url, tokens[0], n) for n in range(10, 10 + REPEATED)
        ]
        print(f"and painted by Chromium {statistics.median(changes) * 1000:.0f} ms after its write (goal: 300)")
        goal = GOALS.get(viewers)
        against = f" (goal: {goal:.0f})" if goal else ""
        print(f"memory with {viewers} viewers: {console.memory:.0f} MiB{against}; without: {empty:.0f} MiB", flush=True)
        return {
            "viewers": viewers,
            "firstPaintSeconds": round(paint, 3),
            "changePaintedSeconds": round(statistics.median(changes), 3),
            "changeOnPageSeconds": round(statistics.median(delays), 3),
            "memoryMiB": round(console.memory, 1),
            "memoryWithoutViewersMiB": round(empty, 1),
        }


async def run(roles: int, viewers: list[int], file: Path | None) -> None:
    async with api_server(binaries=await find(Display(sys.stderr))) as server, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        await apply_crds(server)
        began = time.perf_counter()
        await fill(server, roles)
        print(f"{roles} PgRoles created in {time.perf_counter() - began:.0f} s", flush=True)
        accounts = Accounts(server)
        tokens = [await accounts.create("bench", everything=True) for _ in range(max(viewers))]
        load = os.getloadavg()[0]
        measured = [await measure(server, browser, number, tokens) for number in viewers]
        await browser.close()
    if file is not None:
        result = {"roles": roles, "loadBefore": round(load, 2), "measured": measured}
        await anyio.Path(file).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roles", type=int, default=10_000)
    parser.add_argument("--viewers", default="1,20")
    parser.add_argument("--json", type=Path, help="write the result into this file, too")
    given = parser.parse_args()
    anyio.run(run, given.roles, [int(one) for one in given.viewers.split(",")], given.json)


if __name__ == "__main__":
    main()
