"""Serves pages of snapshots that a test sets, with the console's headers, for states that real servers lack."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from aiohttp import web

from pgrole_controller.console.pages import PageRequest, render, render_fragment, render_login
from pgrole_controller.console.security import HEADERS
from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.console.template_files import static_files
from tests.browser.snapshots import NOW, typical


@dataclass
class BrowserStand:
    """`snapshot`: what the next request is shown. `asked`: requests for pages and fragments, in order."""

    url: str = ""
    snapshot: Snapshot = field(default_factory=typical)
    asked: list[str] = field(default_factory=list)
    logged_in: bool = True
    _feeds: list[web.StreamResponse] = field(default_factory=list)

    async def publish(self, snapshot: Snapshot, *names: str) -> None:
        """Replaces the snapshot and tells every open page which objects changed."""
        self.snapshot = snapshot
        for feed in self._feeds:
            with suppress(ConnectionError):
                await feed.write(f"event: changed\ndata: {json.dumps(names)}\n\n".encode())

    async def send_page(self, request: web.Request) -> web.Response:
        fragment = request.headers.get("X-Fragment") == "1"
        if not self.logged_in:
            raise web.HTTPUnauthorized if fragment else web.HTTPFound("/login")
        self.asked.append(f"{'fragment' if fragment else 'page'} {request.path_qs}")
        question = PageRequest(request.path, dict(request.query), "a-csrf-token", NOW)
        page = (render_fragment if fragment else render)(question, self.snapshot)
        return web.Response(text=page.html, status=page.status, content_type="text/html", headers=HEADERS)

    async def send_events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        self._feeds.append(response)
        try:
            await anyio.sleep_forever()
        finally:
            self._feeds.remove(response)
        return response

    async def send_static(self, request: web.Request) -> web.Response:
        kind, content = static_files()[request.match_info["file"]]
        return web.Response(body=content, content_type=kind, headers=HEADERS)

    async def send_login(self, request: web.Request) -> web.Response:
        problem = request.query.get("problem", "")
        return web.Response(text=render_login("a-csrf-token", problem), content_type="text/html", headers=HEADERS)


@asynccontextmanager
async def run_stand() -> AsyncIterator[BrowserStand]:
    stand = BrowserStand()
    app = web.Application()
    app.router.add_get("/static/{file}", stand.send_static)
    app.router.add_get("/events", stand.send_events)
    app.router.add_get("/login", stand.send_login)
    app.router.add_get("/{path:.*}", stand.send_page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stand.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield stand
    finally:
        await runner.cleanup()
