"""Takes the pictures of docs/images: `python -m tests.browser.screenshots [folder]`."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, FloatRect, async_playwright

from tests.browser import snapshots
from tests.browser.conftest import ARGUMENTS, find_chromium
from tests.browser.stand import BrowserStand, run_stand

#: Maximum height of a picture in pixels.
_TALLEST = 1500

#: Name, path, snapshot, width, theme.
Theme = Literal["light", "dark"]
PICTURES: tuple[tuple[str, str, str, int, Theme], ...] = (
    ("overview", "/", "typical", 1200, "light"),
    ("overview-dark", "/", "typical", 1200, "dark"),
    ("overview-narrow", "/", "typical", 360, "light"),
    ("roles", "/roles", "typical", 1200, "light"),
    ("roles-narrow", "/roles", "typical", 360, "dark"),
    ("role", "/roles/shop/orders-app", "typical", 1200, "light"),
    ("role-dark", "/roles/shop/orders-app", "typical", 1200, "dark"),
    ("role-narrow", "/roles/shop/orders-report", "typical", 360, "light"),
    ("server", "/servers/orders", "typical", 1200, "light"),
    ("login", "/login", "typical", 1200, "light"),
)
#: States to look at while changing the style; these pictures are not kept.
MORE: tuple[tuple[str, str, str, int, Theme], ...] = (
    ("calm", "/", "calm", 1200, "light"),
    ("disconnected", "/servers", "disconnected", 1200, "dark"),
    ("restricted", "/", "restricted", 1200, "light"),
    ("without-rights", "/roles", "without_rights", 1200, "light"),
    ("hostile", "/", "hostile", 1200, "light"),
    ("hostile-role", "/roles/hostile/role-6", "hostile", 1200, "dark"),
    ("hostile-narrow", "/roles/hostile/role-6", "hostile", 360, "light"),
    ("many", "/roles", "many", 1200, "light"),
    ("missing", "/roles/shop/gone", "typical", 1200, "light"),
    ("contested", "/roles/billing/billing-app", "typical", 1200, "light"),
    ("server-narrow", "/servers/orders", "typical", 360, "dark"),
)


async def _take(browser: Browser, stand: BrowserStand, folder: Path, picture: tuple[str, str, str, int, Theme]) -> None:
    name, path, snapshot, width, theme = picture
    stand.snapshot = getattr(snapshots, snapshot)()
    context = await browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=theme, reduced_motion="reduce"
    )
    page = await context.new_page()
    await page.clock.set_fixed_time(snapshots.NOW)
    await page.goto(stand.url + path)
    if path != "/login":
        await page.locator("#live-words", has_text="Live").wait_for()
    height = min(_TALLEST, await page.evaluate("document.documentElement.scrollHeight"))
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
    await page.screenshot(path=folder / f"console-{name}.png", full_page=True, clip=clip)
    await context.close()


async def take_pictures(folder: Path, pictures: tuple[tuple[str, str, str, int, Theme], ...]) -> None:
    async with async_playwright() as playwright, run_stand() as stand:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        for picture in pictures:
            await _take(browser, stand, folder, picture)
        await browser.close()


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images")
    chosen.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_pictures(chosen, PICTURES + MORE if len(sys.argv) > 1 else PICTURES))
