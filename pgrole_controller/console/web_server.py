"""The web application: routes, who may see what they lead to, and the pages.

Pages are rendered in a thread, from a snapshot: a page with thousands of roles delays no other request.
"""

import hmac
import http
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Protocol
from urllib.parse import parse_qsl

import anyio
from aiohttp import hdrs, web

from pgrole_controller.console.connections import LONGEST_BODY, Connections
from pgrole_controller.console.live import TooManyFeeds, send_events
from pgrole_controller.console.login_throttle import Rejected
from pgrole_controller.console.scope import read_namespaces
from pgrole_controller.console.security import (
    RequestRules,
    add_headers,
    address_of,
    bearer_token,
    client_of,
    is_from_elsewhere,
    login_for,
    named_client,
    own_page,
)
from pgrole_controller.console.sessions import LONGEST_SECONDS, Sessions, ViewerSession, to_bytes
from pgrole_controller.console.snapshot import Page, PageQuestion, Snapshot
from pgrole_controller.console.viewer import TooManyPages, Viewer
from pgrole_controller.logs import describe_error
from pgrole_controller.program import program_name

log = logging.getLogger(__name__)

#: Seconds that a form may take to arrive.
FORM_SECONDS = 10.0
#: Pages that are rendered at once.
MOST_RENDERED = 2
LONGEST_QUERY = 2048  # characters
MOST_FIELDS = 8  # of a form

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(Protocol):
    """What renders the pages, without I/O. `static`: files by name."""

    @property
    def static(self) -> Mapping[str, tuple[str, bytes]]: ...

    def find_object(self, path: str) -> str | None:
        """Returns the API's path of the object that a page shows whole; None if it shows none."""

    def render(self, question: PageQuestion, snapshot: Snapshot) -> Page: ...

    def render_login(self, csrf: str, problem: str, page: str) -> str: ...


class OwnerKey:
    """The token in the address that the command prints: it opens one session, once."""

    def __init__(self, viewer: Viewer, announce: Callable[[str], None]) -> None:
        """`announce` is called with each new token."""
        self.viewer = viewer
        self._announce = announce
        self._token = ""
        self.renew()

    def renew(self) -> None:
        """The session ended: another one can be opened with a new token."""
        self._token = secrets.token_urlsafe(32)
        self._announce(self._token)

    def redeem(self, token: str) -> bool:
        if not self._token or not _equal(token, self._token):
            return False
        self._token = ""
        return True


class ConsoleServer:
    def __init__(
        self,
        rules: RequestRules,
        sessions: Sessions,
        pages: Pages,
        owner: OwnerKey | None = None,
        cookie: str = "pgrole",
    ) -> None:
        """`owner`: on a laptop, the only one who can have a session. `cookie`: part of its name."""
        self._rules = rules
        self._sessions = sessions
        self._pages = pages
        self._owner = owner
        self._cookie = f"__Host-{cookie}"
        self._form_cookie = f"{self._cookie}-form"
        self._renders = anyio.CapacityLimiter(MOST_RENDERED)
        self.connections = Connections()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=LONGEST_BODY)
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/healthz", self._answer_probe)
        app.router.add_get("/static/{file}", self._send_static)
        app.router.add_get("/events", self._send_events, allow_head=False)
        app.router.add_get("/login", self._show_login)
        app.router.add_post("/login", self._log_in)
        app.router.add_post("/logout", self._log_out)
        app.router.add_get("/{path:.*}", self._show_page)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses what must not be answered, contains errors, and logs, without query and headers."""
        began, status = time.perf_counter(), 500
        self.connections.begin(request)
        try:
            response = await self._answer(request, handler)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            return _notice(status, error.reason, dict(error.headers))
        except Rejected as error:
            status = error.status
            return _notice(status, str(error))
        except TooManyPages:
            status = 429
            return _notice(status, "too many of your pages are loading at once: try again")
        except (ConnectionError, TimeoutError):
            status = 499  # the client left, or takes nothing
            return _notice(408, "the request took too long")
        except Exception as error:  # noqa: BLE001 -- one page's error
            log.error("page not rendered", extra={"path": request.path[:200], **describe_error(error)})
            return _notice(500, "this page cannot be shown: the console's log has the error")
        finally:
            self.connections.end(request)
            taken = round((time.perf_counter() - began) * 1000, 1)
            extra = {"method": request.method[:16], "path": request.path[:200], "status": status, "milliseconds": taken}
            log.log(logging.DEBUG if request.path in ("/healthz", "/events") else logging.INFO, "request", extra=extra)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/healthz":
            return await handler(request)
        problem = self._rules.problem(request)
        if problem is None and len(request.query_string) > LONGEST_QUERY:
            problem = "the address is too long"
        if problem is not None:
            log.warning("request refused", extra={"why": problem, "address": address_of(request)})
            return _notice(403, problem)
        return await handler(request)

    async def _answer_probe(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _send_static(self, request: web.Request) -> web.Response:
        found = self._pages.static.get(request.match_info["file"])
        if found is None:
            raise web.HTTPNotFound
        content_type, body = found
        return web.Response(body=body, content_type=content_type)

    async def _send_events(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        if session is None:
            raise web.HTTPUnauthorized
        session.viewer.use()
        try:
            return await send_events(request, session.viewer.live, session)
        except TooManyFeeds:
            raise web.HTTPTooManyRequests from None

    async def _show_page(self, request: web.Request) -> web.StreamResponse:
        fragment = request.headers.get("X-Fragment") == "1"
        if self._owner is not None and "token" in request.query:
            return self._redeem(request, self._owner)
        try:
            session = await self._session(request)
        except Rejected as error:
            if fragment or error.status != 401:
                raise
            return self._login_form(request, str(error), error.status, own_page(request.path_qs))
        if session is None:
            if fragment:
                raise web.HTTPUnauthorized
            if is_from_elsewhere(request):
                return _again()
            return _redirect(login_for(request.path_qs))
        viewer = session.viewer
        viewer.use()
        with viewer.loading():
            return await self._render(request, session, fragment=fragment)

    async def _render(self, request: web.Request, session: ViewerSession, *, fragment: bool) -> web.StreamResponse:
        viewer = session.viewer
        await viewer.wait_until_known()
        async with viewer.turn:  # one viewer's pages wait for each other, and for no other viewer's
            if request.transport is None:
                raise ConnectionError
            if not self._sessions.holds(session):
                if fragment:
                    raise web.HTTPUnauthorized
                return _redirect(login_for(request.path_qs))
            snapshot = viewer.snapshot()
            path = self._pages.find_object(request.path)
            fetched = await viewer.fetch(path) if path else None
            question = PageQuestion(
                request.path, dict(request.query), session.csrf, datetime.now(UTC), fragment, fetched
            )
            page = await anyio.to_thread.run_sync(self._pages.render, question, snapshot, limiter=self._renders)
        return _page(page.status, page.html)

    async def _session(self, request: web.Request) -> ViewerSession | None:
        """The session of the token that a trusted proxy sent, else of the cookie. Raises Rejected."""
        if self._sessions.accepts_tokens and self._rules.trusts(address_of(request)):
            token = bearer_token(request)
            if token:
                return await self._sessions.of_header(token, named_client(request, self._rules))
        cookie = request.cookies.get(self._cookie)
        return self._sessions.find(cookie) if cookie else None

    async def _show_login(self, request: web.Request) -> web.StreamResponse:
        page = own_page(request.query.get("page", ""))
        if await self._session(request) is not None:
            return _redirect(page)
        return self._login_form(request, self._sessions.why_ended(request.cookies.get(self._cookie, "")), 200, page)

    def _login_form(self, request: web.Request, problem: str, status: int, page: str) -> web.StreamResponse:
        """`page`: path and query of the page to show after signing in, as `own_page` returns them."""
        if self._owner is not None:
            return _notice(401, f"open the address that {program_name()} console printed last")
        held = request.cookies.get(self._form_cookie, "")
        cookie = held if 20 <= len(held) <= 64 else secrets.token_urlsafe(24)
        response = _page(status, self._pages.render_login(self._sessions.sign(cookie), problem, page))
        self._set_cookie(response, self._form_cookie, cookie)
        return response

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if self._owner is not None:
            raise web.HTTPForbidden
        form = await self._read_form(request)
        page = own_page(form.get("page", ""))
        cookie = request.cookies.get(self._form_cookie, "")
        if not cookie or not _equal(form.get("csrf", ""), self._sessions.sign(cookie)):
            return self._login_form(request, "the form has expired: try again", 403, page)
        namespaces = read_namespaces(form.get("namespaces", "")[:LONGEST_QUERY])
        try:
            client = client_of(request, self._rules)
            _, content = await self._sessions.log_in(form.get("token", "").strip(), namespaces, client)
        except Rejected as error:
            response = self._login_form(request, str(error), error.status, page)
            response.force_close()  # the next attempt queues for a connection behind those of others
            return response
        response = _redirect(page)
        self._set_cookie(response, self._cookie, content)
        response.del_cookie(self._form_cookie, secure=True, httponly=True, samesite="Strict")
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        if session is None:
            return _redirect("/login")
        form = await self._read_form(request)
        if not _equal(form.get("csrf", ""), session.csrf):
            return _notice(403, "the form has expired: load the page again")
        self._sessions.end(session)
        response = _redirect("/login")
        response.del_cookie(self._cookie, secure=True, httponly=True, samesite="Strict")
        return response

    async def _read_form(self, request: web.Request) -> dict[str, str]:
        """Raises HTTPException, ConnectionError, TimeoutError."""
        if request.content_type != "application/x-www-form-urlencoded":
            raise web.HTTPUnsupportedMediaType
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType
        self.connections.end(request)  # until the client has sent the rest
        with anyio.fail_after(FORM_SECONDS):
            body = await request.read()
        self.connections.begin(request)
        try:  # not in the charset that the request names: Python knows some that take quadratic time
            return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError as error:
            raise web.HTTPBadRequest from error

    def _redeem(self, request: web.Request, owner: OwnerKey) -> web.StreamResponse:
        """Exchanges the token in the address for a cookie. A browser that only prefetches does not use it up."""
        if request.headers.get("Sec-Purpose", "").startswith("prefetch"):
            raise web.HTTPServiceUnavailable
        if request.method != "GET" or not owner.redeem(request.query["token"]):
            return _notice(
                403, f"this address was used before: open the one that {program_name()} console printed last"
            )
        _, content = self._sessions.open(owner.viewer)
        response = _redirect("/")
        self._set_cookie(response, self._cookie, content)
        return response

    @staticmethod
    def _set_cookie(response: web.StreamResponse, name: str, content: str) -> None:
        response.set_cookie(
            name, content, max_age=int(LONGEST_SECONDS), path="/", secure=True, httponly=True, samesite="Strict"
        )


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(to_bytes(given), to_bytes(expected))


def _page(status: int, html: str) -> web.Response:
    return web.Response(status=status, text=html, content_type="text/html")


def _redirect(path: str) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: path})


def _again() -> web.Response:
    """Loads the same page once more: then it is this site that asks, and the browser sends the strict cookie."""
    head = '<meta http-equiv="refresh" content="0"><title>Loading · pgrole</title>'
    return _page(200, f'<!doctype html><html lang="en">{head}<p>Loading')


def _notice(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    title = http.HTTPStatus(status).phrase
    body = (
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title} · pgrole</title><link rel="stylesheet" href="/static/style.css">'
        '<link rel="icon" href="/static/favicon.svg" type="image/svg+xml">'  # else browsers ask for another
        f'<main class="narrow"><h1>{title}</h1><p>{escape(text)}</p><p><a href="/">Overview</a></p></main>'
    )
    response = _page(status, body)
    if headers and hdrs.ALLOW in headers:
        response.headers[hdrs.ALLOW] = headers[hdrs.ALLOW]
    return response
