"""Live updates: what changed for one viewer, sent to their open pages as server-sent events.

A slow page delays only itself: what it has not received yet is a set of names, never a queue of events.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from aiohttp import web

from pgrole_controller.event_loop import Signal

#: Changes within this many seconds are sent together.
COALESCE_SECONDS = 0.04
HEARTBEAT_SECONDS = 15.0
#: A page that reads nothing for this many seconds is disconnected.
WRITE_SECONDS = 20.0
#: Maximum number of connected pages of one viewer. Browsers open six connections to a server over HTTP/1.1.
MOST_FEEDS = 12
#: Maximum number of names in one message.
MOST_NAMES = 500

CONNECTION = "connection"
PROGRESS = "progress"


class TooManyFeeds(Exception):
    pass


class Feed:
    """What one open page has not received yet. `owner`: the session that opened it."""

    def __init__(self, owner: object = None, is_gone: Callable[[], bool] = lambda: False) -> None:
        self.owner = owner
        self.is_gone = is_gone
        self._pending: dict[str, None] = {}
        self._news = Signal()
        self.closed = False

    def note(self, name: str) -> None:
        self._pending[name] = None
        self._news.set()

    def close(self) -> None:
        """Ends the feed after what is pending."""
        self.closed = True
        self._news.set()

    async def take(self) -> list[str]:
        """Waits for changes, and returns their names; none after HEARTBEAT_SECONDS without a change."""
        with anyio.move_on_after(HEARTBEAT_SECONDS):
            await self._news.wait()
            if not self.closed:
                await anyio.sleep(COALESCE_SECONDS)
        self._news.clear()
        names, self._pending = list(self._pending), {}
        return names


class Live:
    """Distributes changes to the feeds of one viewer."""

    def __init__(self) -> None:
        self._feeds: list[Feed] = []
        #: Another number after each change, also after a restart.
        self.version = secrets.randbelow(2**40)

    def __len__(self) -> int:
        return len(self._feeds)

    def note(self, name: str) -> None:
        """`name`: role/NAMESPACE/NAME, server/NAME, connection, or progress of the first list."""
        self.version += 1
        for feed in self._feeds:
            feed.note(name)

    def close(self, owner: object = None) -> None:
        """Ends the feeds of one session that ended; without `owner`, all."""
        for feed in self._feeds:
            if owner is None or feed.owner is owner:
                feed.note(CONNECTION)
                feed.close()

    @contextmanager
    def feed(self, owner: object = None, is_gone: Callable[[], bool] = lambda: False) -> Iterator[Feed]:
        """`is_gone`: whether the page left, which its feed notices only when it writes. Raises TooManyFeeds."""
        if sum(not one.is_gone() for one in self._feeds) >= MOST_FEEDS:
            raise TooManyFeeds
        for one in self._feeds:
            if one.is_gone():
                one.close()
        feed = Feed(owner, is_gone)
        self._feeds.append(feed)
        try:
            yield feed
        finally:
            self._feeds.remove(feed)


async def send_events(request: web.Request, live: Live, owner: object = None) -> web.StreamResponse:
    """Answers until the page leaves or the session `owner` ends.

    The page says which version it shows (`since`), so no change between its rendering and this request is lost.
    """
    with live.feed(owner, lambda: request.transport is None) as feed:
        if request.query.get("since", str(live.version)) != str(live.version):
            feed.note(CONNECTION)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await _write(response, "retry: 1000\n\n")
        while not feed.closed:
            names = await feed.take()
            if not names:
                await _write(response, ": \n\n")
            for start in range(0, len(names), MOST_NAMES):
                await _write(response, f"event: changed\ndata: {json.dumps(names[start : start + MOST_NAMES])}\n\n")
    return response


async def _write(response: web.StreamResponse, text: str) -> None:
    """Raises TimeoutError, ConnectionError."""
    with anyio.fail_after(WRITE_SECONDS):
        await response.write(text.encode())
