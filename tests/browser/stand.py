"""Serves pages for snapshots that a test sets, with the console's headers, for states that real servers lack."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio
from aiohttp import web

from pgrole_controller.console.pages import ConsolePages
from pgrole_controller.console.security import HEADERS
from pgrole_controller.console.snapshot import FetchedObject, PageQuestion, Snapshot
from pgrole_controller.console.template_files import static_files
from pgrole_controller.core.request import Key
from tests.browser.snapshots import NOW, typical


@dataclass
class BrowserStand:
    """`snapshot`: what the next request is shown. `asked`: requests for pages and fragments, in order.

    `csrf`: of the session. `failing`: how many fragments are refused from now on. `login`: where a proxy redirects to,
    instead of a refusal.
    """

    url: str = ""
    snapshot: Snapshot = field(default_factory=typical)
    asked: list[str] = field(default_factory=list)
    logged_in: bool = True
    csrf: str = "a-csrf-token"
    failing: int = 0
    login: str = ""
    _pages: ConsolePages = field(default_factory=ConsolePages)
    _feeds: list[web.StreamResponse] = field(default_factory=list)

    async def publish(self, snapshot: Snapshot, *names: str) -> None:
        """Replaces the snapshot and tells every open page which objects changed."""
        self.snapshot = replace(snapshot, version=self.snapshot.version + 1)
        for feed in self._feeds:
            with suppress(ConnectionError):
                await feed.write(f"event: changed\ndata: {json.dumps(names)}\n\n".encode())

    async def send_page(self, request: web.Request) -> web.Response:
        fragment = request.headers.get("X-Fragment") == "1"
        if not self.logged_in:
            if fragment and not self.login:
                raise web.HTTPUnauthorized
            raise web.HTTPFound(self.login if fragment else "/login")
        if fragment and self.failing:
            self.failing -= 1
            raise web.HTTPServiceUnavailable
        self.asked.append(f"{'fragment' if fragment else 'page'} {request.path_qs}")
        fetched = self._fetch(request.path) if self._pages.find_object(request.path) is not None else None
        question = PageQuestion(request.path, dict(request.query), self.csrf, NOW, fragment, fetched)
        page = self._pages.render(question, self.snapshot)
        return web.Response(text=page.html, status=page.status, content_type="text/html", headers=HEADERS)

    def _fetch(self, path: str) -> FetchedObject:
        _, section, *names, _ = path.split("/")
        found = self.snapshot.servers.get(names[0]) if section == "servers" else self.snapshot.roles.get(Key(*names))
        if found is None:
            return FetchedObject(None, "The object does not exist. It may have been deleted.")
        return FetchedObject(json.dumps(found).encode())

    async def send_events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        if request.query["since"] != str(self.snapshot.version):
            await response.write(b'event: changed\ndata: ["connection"]\n\n')
        self._feeds.append(response)
        try:
            await anyio.sleep_forever()
        finally:
            self._feeds.remove(response)
        return response

    async def send_static(self, request: web.Request) -> web.Response:
        kind, content = static_files()[request.match_info["file"]]
        return web.Response(body=content, content_type=kind, headers=HEADERS)

    async def sign_out(self, _: web.Request) -> web.Response:
        self.logged_in = False
        return web.Response(status=303, headers={"Location": self.login or "/login", **HEADERS})

    async def send_login(self, request: web.Request) -> web.Response:
        problem = request.query.get("problem", "")
        return web.Response(
            text=self._pages.render_login("a-csrf-token", problem, "/"), content_type="text/html", headers=HEADERS
        )


@asynccontextmanager
async def run_stand() -> AsyncIterator[BrowserStand]:
    stand = BrowserStand()
    app = web.Application()
    app.router.add_get("/static/{file}", stand.send_static)
    app.router.add_get("/events", stand.send_events)
    app.router.add_get("/login", stand.send_login)
    app.router.add_post("/logout", stand.sign_out)
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
