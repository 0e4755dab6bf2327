"""A real browser: Chromium of the operating system, with a fresh profile for each test, or one for a module."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, ViewportSize, async_playwright

from tests.browser.stand import BrowserStand, run_stand

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Otherwise Chromium starts a spare process for each one that a page uses.
    "--disable-features=SpareRendererForSitePerProcess",
)
WIDE: ViewportSize = {"width": 1280, "height": 900}


def find_chromium() -> str:
    """Returns the path of Chromium. Fails, and says how to install it, if there is none."""
    wanted = os.environ.get("CHROMIUM")
    found = wanted or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found or not shutil.which(found):
        pytest.fail(
            f"no browser: {wanted or 'chromium'} is not in PATH. Run `make chromium` (as root, on Debian), or set "
            "CHROMIUM to the path of a Chromium",
            pytrace=False,
        )
    return found


@dataclass
class BrowserTab:
    """A page of the browser, and its faults: `errors` of scripts and of the CSP, `strange` requests to other hosts.

    `refusals`: HTTP statuses that the test expects. Chromium reports them as errors, at any time after the answer.
    """

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    refusals: set[int] = field(default_factory=lambda: {404})

    async def open(self, path: str) -> None:
        answer = await self.page.goto(self.url + path)
        assert answer is not None

    def note_message(self, message: ConsoleMessage) -> None:
        refused = any(f"status of {status}" in message.text for status in self.refusals)
        if message.type in ("error", "warning") and not refused:
            self.errors.append(f"{message.text} ({message.location['url']})")

    def note_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "about:", "data:")):
            self.strange.append(request.url)

    def note_exception(self, error: Error) -> None:
        self.errors.append(str(error))

    def listen(self) -> None:
        self.page.on("console", self.note_message)
        self.page.on("pageerror", self.note_exception)
        self.page.on("request", self.note_request)

    def ignore(self) -> None:
        """Undoes `listen`."""
        self.page.remove_listener("console", self.note_message)
        self.page.remove_listener("pageerror", self.note_exception)
        self.page.remove_listener("request", self.note_request)


@dataclass(kw_only=True)
class Tab(BrowserTab):
    """A tab with pages of a stand."""

    stand: BrowserStand


@asynccontextmanager
async def new_page(browser: Browser) -> AsyncIterator[Page]:
    """A page with a profile of its own."""
    context = await browser.new_context(viewport=WIDE, color_scheme="light")
    try:
        yield await context.new_page()
    finally:
        await context.close()


@pytest_asyncio.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        yield started
        await started.close()


@pytest_asyncio.fixture
async def stand() -> AsyncIterator[BrowserStand]:
    async with run_stand() as running:
        yield running


@pytest_asyncio.fixture
async def tab(browser: Browser, stand: BrowserStand) -> AsyncIterator[Tab]:
    """Fails the test at its end if the page had an error, violated its CSP, or sent a request to another host."""
    async with new_page(browser) as page:
        opened = Tab(page, stand.url, stand=stand)
        opened.listen()
        yield opened
    assert opened.errors == []
    assert opened.strange == []


@pytest_asyncio.fixture(scope="module")
async def lasting(browser: Browser) -> AsyncIterator[Tab]:
    async with run_stand() as running, new_page(browser) as page:
        yield Tab(page, running.url, stand=running)


@pytest_asyncio.fixture
async def lasting_tab(lasting: Tab) -> AsyncIterator[Tab]:
    """Like `tab`, without the second of CPU that a page of its own costs, for tests that only look: their module's page
    and stand.
    """
    opened = Tab(lasting.page, lasting.url, stand=lasting.stand)
    opened.listen()
    yield opened
    assert await opened.page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert await opened.page.context.cookies() == []
    opened.ignore()
    assert opened.errors == []
    assert opened.strange == []
