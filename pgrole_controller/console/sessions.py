"""Who is looking: sessions behind opaque cookies, and one viewer for each bearer token.

Tokens are in memory only, inside the viewer's client. A session ends by logout, by a 401 from the API server, or after
eight hours. Nothing is shared between viewers except the limits.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from pgrole_controller.console.login_throttle import Failures, LoginQueues, Rejected
from pgrole_controller.console.scope import ask_name
from pgrole_controller.console.viewed_objects import SharedObjects
from pgrole_controller.console.viewer import Viewer
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, KubeError, is_away
from pgrole_controller.kube.transport import Reachability
from pgrole_controller.logs import describe_error

log = logging.getLogger(__name__)

MOST_VIEWERS = 20
MOST_OF_ONE_USER = 4  # viewers with one user name but other tokens or namespaces; a further one ends the oldest
MOST_SESSIONS = 10  # sessions of one viewer; a further one ends the oldest
MOST_ENDED = 200  # ended sessions whose reason is remembered
LONGEST_SECONDS = 8 * 3600.0
SWEEP_SECONDS = 1.0

#: Tokens that are checked at once.
MOST_CHECKS = 4

#: Why a session ended, for its viewer.
REFUSED = "You were signed out: the API server no longer accepts your token. It expired or was revoked."
OVER = "You were signed out: a session lasts eight hours."
CROWDED = "You were signed out: you were idle, and the console reached its limit of viewers."
REPLACED = "You were signed out: you signed in again, and the console reached its limit for one user."
FORGOTTEN = "You were signed out: the console restarted, or your session ended some time ago."

LONGEST_TOKEN = 16 * 1024  # characters
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*\Z")


def to_bytes(text: str) -> bytes:
    """Encodes what a client sent. aiohttp passes bytes that are not UTF-8 on as surrogates."""
    return text.encode(errors="surrogatepass")


class ApiSource(Protocol):
    """Where clients for a viewer's token come from: `ApiAddress`."""

    def connect(
        self, token: str, refused: Callable[[], None], reachability: Reachability | None = None
    ) -> AbstractAsyncContextManager[Client]: ...


@dataclass(slots=True, eq=False)
class ViewerSession:
    """`digest`: of the cookie's content. `csrf` goes into forms."""

    viewer: Viewer
    ends_at: float  # seconds of the loop's clock
    digest: bytes
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)


class Sessions:
    def __init__(self, tasks: TaskGroup, api: ApiSource | None, namespaces: tuple[str, ...] = ()) -> None:
        """`api` None: no tokens are accepted. `namespaces`: tried for viewers who may not list PgRoles in all."""
        self.shared = SharedObjects()
        self._tasks = tasks
        self._api = api
        self._namespaces = namespaces
        self._key = secrets.token_bytes(32)
        self._sessions: dict[bytes, ViewerSession] = {}
        self._reasons: dict[bytes, str] = {}  # why sessions ended, by digest
        self._scopes: dict[Viewer, anyio.CancelScope] = {}
        self._by_token: dict[bytes, Viewer] = {}
        self._failures = Failures()
        self._queues = LoginQueues()
        self._checks = anyio.Semaphore(MOST_CHECKS)
        self.on_end: Callable[[], None] = lambda: None  # called after a session ended

    def __len__(self) -> int:
        """Number of viewers."""
        return len(self._scopes)

    @property
    def accepts_tokens(self) -> bool:
        return self._api is not None

    def digest(self, text: str) -> bytes:
        """A keyed digest: memory that leaks shows no cookie and no token."""
        return hmac.digest(self._key, to_bytes(text), hashlib.sha256)

    def sign(self, text: str) -> str:
        """The CSRF token of someone without a session, whose cookie holds `text`."""
        return self.digest(f"form {text}").hex()

    def find(self, cookie: str) -> ViewerSession | None:
        return self._current(self.digest(cookie))

    def _current(self, digest: bytes) -> ViewerSession | None:
        session = self._sessions.get(digest)
        if session is not None and anyio.current_time() >= session.ends_at:
            self.end(session, OVER)
            return None
        return session

    def why_ended(self, cookie: str) -> str:
        """Returns why the session of this cookie ended, for its viewer; empty without a cookie."""
        return self._reasons.get(self.digest(cookie), FORGOTTEN) if cookie else ""

    async def log_in(self, token: str, namespaces: tuple[str, ...], address: str) -> tuple[ViewerSession, str]:
        """Returns the session and what its cookie holds. `address`: whose failures are counted. Raises Rejected."""
        viewer = await self._admit(token, namespaces, address)
        return self.open(viewer)

    async def of_header(self, token: str, address: str | None) -> ViewerSession:
        """The session of a token that a trusted proxy sends with each request. `address`: of its client, if the proxy
        names it. Raises Rejected.
        """
        digest = self.digest(f"header {token}")
        session = self._current(digest)
        if session is not None:
            return session
        viewer = await self._admit(token, (), address)
        found = self._sessions.get(digest)
        return found if found is not None and found.viewer is viewer else self._open(viewer, digest)

    def open(self, viewer: Viewer) -> tuple[ViewerSession, str]:
        """Opens a session of a viewer who was admitted; returns it and what its cookie holds."""
        if viewer not in self._scopes:
            self._follow(viewer)
        cookie = secrets.token_urlsafe(32)
        return self._open(viewer, self.digest(cookie)), cookie

    def _open(self, viewer: Viewer, digest: bytes) -> ViewerSession:
        mine = [one for one in self._sessions.values() if one.viewer is viewer]
        for oldest in mine[: max(len(mine) - MOST_SESSIONS + 1, 0)]:
            del self._sessions[oldest.digest]
            self._note_end(oldest.digest, REPLACED)
            viewer.live.close(oldest)
        session = ViewerSession(viewer, anyio.current_time() + LONGEST_SECONDS, digest)
        self._sessions[digest] = session
        log.info("session began", extra={"viewer": viewer.name})
        return session

    def end(self, session: ViewerSession, why: str = "") -> None:
        """The viewer's watches and pages end with their last session. `why`: for the viewer."""
        if self._sessions.pop(session.digest, None) is None:
            return
        self._note_end(session.digest, why)
        log.info("session ended", extra={"viewer": session.viewer.name})
        self.on_end()
        session.viewer.live.close(session)
        if not any(one.viewer is session.viewer for one in self._sessions.values()):
            self._dismiss(session.viewer)

    def holds(self, session: ViewerSession) -> bool:
        """Whether the session has not ended."""
        return self._sessions.get(session.digest) is session

    async def sweep(self) -> None:
        """Ends sessions that are over. Runs until cancelled."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            now = anyio.current_time()
            for session in [one for one in self._sessions.values() if now >= one.ends_at]:
                self.end(session, OVER)

    def _note_end(self, digest: bytes, why: str) -> None:
        if why:
            self._reasons[digest] = why
        while len(self._reasons) > MOST_ENDED:
            del self._reasons[next(iter(self._reasons))]

    async def _admit(self, token: str, namespaces: tuple[str, ...], address: str | None) -> Viewer:
        """`address`: whose failures are counted; None for a proxy that speaks for many and names none."""
        if self._api is None:
            raise Rejected(403, "this console accepts no tokens")
        if address is not None and self._failures.exceeded(address, anyio.current_time()):
            await self._queues.wait(address)
        if len(token) > LONGEST_TOKEN or not _TOKEN.match(token):
            self._failures.count(address)
            raise Rejected(401, "this is not a bearer token: paste it without spaces and line breaks")
        digest = self.digest(f"viewer {token} {namespaces}")
        known = self._by_token.get(digest)
        if known is not None:
            return known
        self._failures.count(address)
        try:
            async with self._checks, self._api.connect(token, lambda: None) as client:
                name = await ask_name(client)
        except ApiError as error:
            if error.status == 401:
                raise Rejected(401, "the API server does not accept this token: it is wrong or expired") from error
            if is_away(error):
                self._failures.forgive(address)
            raise Rejected(502, f"the API server answers with an error: {error.status} {error.reason}") from error
        except KubeError as error:
            self._failures.forgive(address)
            raise Rejected(502, "the API server does not answer: try again") from error
        self._failures.forgive(address)
        return self._by_token.get(digest) or self._add(self._api, token, digest, name, namespaces)

    def _add(self, api: ApiSource, token: str, digest: bytes, name: str, namespaces: tuple[str, ...]) -> Viewer:
        self._make_room(name)

        def refused() -> None:
            log.info("token refused, session ends", extra={"viewer": name})
            self._dismiss(viewer, REFUSED)

        wanted = tuple(dict.fromkeys((*namespaces, *self._namespaces)))
        viewer = Viewer(name, lambda reachability: api.connect(token, refused, reachability), wanted, self.shared)
        self._by_token[digest] = viewer
        self._follow(viewer)
        return viewer

    def _make_room(self, name: str) -> None:
        """Raises Rejected if the maximum of viewers is reached; a viewer with idle watches makes room.

        One user makes room for itself: tokens of one account cannot occupy all places.
        """
        own = sorted((one for one in self._scopes if name and one.name == name), key=lambda one: one.used_at)
        for oldest in own[: max(len(own) - MOST_OF_ONE_USER + 1, 0)]:
            self._dismiss(oldest, REPLACED)
        if len(self._scopes) < MOST_VIEWERS:
            return
        idle = sorted((one for one in self._scopes if not one.watching), key=lambda one: one.used_at)
        if not idle:
            raise Rejected(503, f"{MOST_VIEWERS} viewers are logged in, the maximum: try again later")
        self._dismiss(idle[0], CROWDED)

    def _follow(self, viewer: Viewer) -> None:
        scope = self._scopes[viewer] = anyio.CancelScope()
        viewer.use()
        self._tasks.start_soon(self._run, viewer, scope)

    async def _run(self, viewer: Viewer, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    await viewer.run()
                except Exception as error:  # noqa: BLE001 -- one viewer's error must not end the others
                    log.error("watches ended by an error", extra={"viewer": viewer.name, **describe_error(error)})
                await anyio.sleep(SWEEP_SECONDS)

    def _dismiss(self, viewer: Viewer, why: str = "") -> None:
        """Ends everything of a viewer. `why`: for the viewer."""
        scope = self._scopes.pop(viewer, None)
        if scope is None:
            return
        for digest in [digest for digest, one in self._sessions.items() if one.viewer is viewer]:
            del self._sessions[digest]
            self._note_end(digest, why)
        for digest in [digest for digest, one in self._by_token.items() if one is viewer]:
            del self._by_token[digest]
        viewer.live.close()
        scope.cancel()
