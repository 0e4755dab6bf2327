"""The product as in production: API server, PostgreSQL, controller and console, each in processes of its own."""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from playwright.async_api import Browser, expect

from pgrole_controller.local.apiserver import ApiServer, api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import Process, reached, tied_to_parent
from pgrole_controller.local.workspace import free_port
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.world import PATIENCE, ExecutedController, Kube, running
from tests.browser.conftest import BrowserTab, new_page
from tests.integration.console_stand import Accounts

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*")


@dataclass(frozen=True, slots=True)
class ConsoleProgram:
    """`pgrole-controller console` as its own process."""

    process: Process
    url: str

    def announced(self) -> list[str]:
        """Addresses that it printed, oldest first."""
        return _ADDRESS.findall(self.process.log.read_text(encoding="utf-8"))

    async def wait_announced(self, number: int) -> str:
        """Returns the last address once it printed this many."""

        async def is_there() -> bool:
            return len(self.announced()) >= number

        if not await reached(is_there, PATIENCE):
            raise self.process.failure(f"did not print {number} addresses")
        return self.announced()[-1]

    async def answers(self) -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"{self.url}/healthz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False


@asynccontextmanager
async def console_program(folder: Path, *arguments: str) -> AsyncIterator[ConsoleProgram]:
    port = free_port()
    command = [sys.executable, "-m", "pgrole_controller", "console", f"--port={port}", "--log-level=debug", *arguments]
    process = Process("console", tied_to_parent(command), folder / f"console-{port}.log")
    found = ConsoleProgram(process, f"http://127.0.0.1:{port}")
    await process.start()
    try:
        if not await reached(found.answers, PATIENCE):
            raise process.failure("does not answer")
        yield found
    finally:
        await process.stop()
    assert "Traceback" not in process.log.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Product:
    """Roles in `shop` and `billing` on the server `main`; `console` accepts tokens."""

    api: ApiServer
    postgres: PostgresServer
    servers: PgServers
    shop: Kube
    billing: Kube
    console: ConsoleProgram
    folder: Path

    @property
    def accounts(self) -> Accounts:
        return Accounts(self.api)


@asynccontextmanager
async def run_product(binaries: Binaries, postgres: PostgresServer, folder: Path) -> AsyncIterator[Product]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(api_server(binaries=binaries))
        await apply_crds(api)
        for name in ("shop", "billing"):
            await create_namespace(api, name)
        servers = await stack.enter_async_context(pgservers(api))
        controller = ExecutedController(api, "", folder, "--leader-election", "true")
        await stack.enter_async_context(running(controller, connected=False))
        await servers.apply("main", postgres)
        shop, billing = Kube(api, "shop"), Kube(api, "billing")
        server = {"name": "main"}
        await shop.apply("readers", name="readers", serverRef=server)
        await shop.apply(
            "orders", name="orders_app", serverRef=server, login=True, connectionLimit=7, memberOf=[{"role": "readers"}]
        )
        await billing.apply("invoices", name="invoices_app", serverRef=server)
        for kube in (shop, billing):
            await kube.wait_all_ready()
        arguments = ("--auth=token", f"--api-server={api.url}", f"--certificate-authority={api.ca}")
        console = await stack.enter_async_context(console_program(folder, *arguments))
        yield Product(api, postgres, servers, shop, billing, console, folder)


@asynccontextmanager
async def open_tab(browser: Browser, url: str) -> AsyncIterator[BrowserTab]:
    """Fails at its end if the page had an error, violated its CSP, or sent a request to another host."""
    async with new_page(browser) as page:
        tab = BrowserTab(page, url)
        tab.listen()
        yield tab
    assert tab.errors == [], tab.errors
    assert tab.strange == [], tab.strange


async def sign_in(tab: BrowserTab, token: str, namespaces: str = "") -> None:
    await tab.open("/")
    await tab.page.get_by_label("Token").fill(token)
    await tab.page.get_by_label("Namespaces").fill(namespaces)
    await tab.page.get_by_role("button", name="Sign in").click()
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Overview")
    await expect(tab.page.locator("#live-words")).to_have_text("Live")
