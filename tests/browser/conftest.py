"""A real browser: Chromium of the operating system, with one profile whose data is cleared after each test."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, ViewportSize, async_playwright, expect

from tests.acceptance.world import PATIENCE
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

#: Deadline for a page to show something, in milliseconds: the machine may be busy.
expect.set_options(timeout=PATIENCE * 1000)


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


@pytest_asyncio.fixture(scope="package")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with new_page(browser) as opened:
        yield opened


@pytest_asyncio.fixture
async def tab(page: Page, stand: BrowserStand) -> AsyncIterator[Tab]:
    """Fails the test at its end if the page had an error, violated its CSP, or sent a request to another host.

    All tests share one page, since a new one costs a second of CPU. Each has an origin of its own, that of its stand,
    and leaves nothing behind in the browser.
    """
    opened = Tab(page, stand.url, stand=stand)
    await page.set_viewport_size(WIDE)
    await page.emulate_media(color_scheme="light", reduced_motion="null")
    opened.listen()
    yield opened
    opened.ignore()
    await leave(page, stand.url)
    assert opened.errors == []
    assert opened.strange == []


async def leave(page: Page, origin: str) -> None:
    """Closes the other pages, and forgets what the browser keeps for this origin."""
    context = page.context
    for other in context.pages:
        if other is not page:
            await other.close()
    await page.goto("about:blank")
    await context.clear_cookies()
    session = await context.new_cdp_session(page)
    await session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    await session.detach()
