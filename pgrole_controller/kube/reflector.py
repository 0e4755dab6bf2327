"""Keeps a store equal to one resource on the API server, and notifies its listeners of changes.

Expected flow: list in pages, replace the store's content, and watch from the list's version. The server ends a watch
after some minutes, and the next one continues from there.

Guarantees: a disconnect loses nothing: the watch continues from the last version, or everything is listed again and
whatever disappeared is announced. Listeners are notified only if an object really differs from the stored one. A server
that answers at once and uselessly is not polled in a tight loop. A server that was away is tried again as soon as it
answers any request. Refusals are recorded in the store, those of a server that may only be starting once they last.

Caveat: several changes that occur while no watch is open are announced as one.
"""

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.backoff import Backoff, Streak
from pgrole_controller.event_loop import Turns
from pgrole_controller.kube.answers import LIMIT, LineTooLong, read_status
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import AnswerTooLong, ApiError, BadStream, Silent, Unreachable
from pgrole_controller.kube.listing import PAGE
from pgrole_controller.kube.resource import JSON, Resource
from pgrole_controller.kube.store import Listener, Store, is_older
from pgrole_controller.kube.stored_object import Stored, pack_metadata
from pgrole_controller.kube.unvalidated import read_json

log = logging.getLogger(__name__)

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


_PASSING = (408, 410, 429)  # answers below 500 where the request is not at fault
_DENIED = (401, 403)


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Seconds, except `page` (objects), `page_target`, `page_limit` and `line_limit` (bytes). A page larger than the
    target is asked for in smaller ones; one object alone may be as large as the limit.
    """

    page: int = PAGE
    page_target: int = 2 * 2**20  # takes the event loop 20 ms to parse
    watch_least: float = 300.0
    watch_most: float = 600.0
    inactivity: float = 70.0  # the server sends a bookmark each minute, once it has seen any change since its start
    backoff_first: float = 0.8
    backoff_most: float = 30.0
    healthy: float = 120.0
    short: float = 5.0  # a watch that ends sooner counts as failed
    retry_after_most: float = 300.0
    list_timeout: float = 60.0
    denied: float = 10.0  # once it listed, a server that starts refuses everyone until it has read its RBAC rules
    line_limit: int = LIMIT
    page_limit: int = LIMIT


DEFAULT: Final = WatchTiming()


class _Expired(Exception):
    """The API server no longer knows the version to watch from: list again."""


class _Ended(Exception):
    """The server ended the watch sooner than requested."""


async def reflect(
    client: Client,
    resource: Resource,
    store: Store,
    changed: Listener,
    *,
    namespace: str | None = None,
    name: str | None = None,
    metadata_only: bool = False,
    prepare: Callable[[], Awaitable[None]] | None = None,
    timing: WatchTiming = DEFAULT,
) -> None:
    """Runs until cancelled. Subscribes `changed` to the store.

    `namespace` None means all; `name` selects one object. `metadata_only`: requests and keeps only what `pack_metadata`
    takes (Secrets). `prepare` is awaited before the store receives its first object.
    """
    store.subscribe(changed)
    run = _Reflection(client, resource, store, namespace, name, metadata_only, prepare, timing)
    while True:
        await run.round()


class _Reflection:
    def __init__(
        self,
        client: Client,
        resource: Resource,
        store: Store,
        namespace: str | None,
        name: str | None,
        metadata_only: bool,
        prepare: Callable[[], Awaitable[None]] | None,
        timing: WatchTiming,
    ) -> None:
        self._client = client
        self._resource = resource
        self._path = resource.path(namespace)
        self._selected = {} if name is None else {"fieldSelector": f"metadata.name={name}"}
        self._store = store
        self._metadata_only = metadata_only
        self._prepare = prepare
        self._timing = timing
        self._backoff = Backoff(timing.backoff_first, timing.backoff_most)
        self._streak = Streak()
        self._version: str | None = None  # version to watch from; None: list first
        self._expired_at = -math.inf
        self._denied_since: float | None = None

    async def round(self) -> None:
        """Lists if needed, watches once, then waits as long as the watch's end demands."""
        try:
            if self._version is None:
                self._version = await self._list()
            await self._watch(self._version)
            self._count("in time")
        except _Expired as expired:
            self._count("expired")
            self._version = None
            now, last = time.monotonic(), self._expired_at
            self._expired_at = now
            log.info("watch expired", extra={"resource": self._resource.plural, "cause": str(expired)})
            if now - last < self._timing.healthy:
                await self._rest(expired)
        except ApiError as error:
            self._count("refused")
            if error.status != 429 and error.status < 500:
                self._version = None  # the request was refused; also when the CRD was deleted and created again
                if error.status not in _PASSING and not self._may_be_starting(error):
                    self._store.refuse(str(error))
            await self._rest(error, min(error.retry_after or 0.0, self._timing.retry_after_most))
        except LineTooLong as error:
            self._count("failed")
            self._version = None
            await self._rest(error)
        except Silent as error:  # half-open, or nothing happens: the next watch shows which
            self._count("silent")
            log.debug("watch was silent", extra={"resource": self._resource.plural, "error": str(error)})
        except (BadStream, Unreachable, _Ended) as error:
            self._count("failed")
            self._denied_since = None
            await self._rest(error)

    def _may_be_starting(self, error: ApiError) -> bool:
        """Whether the API server may refuse only because it has not read its RBAC rules: it listed this before."""
        if error.status not in _DENIED or not self._store.listed:
            return False
        now = time.monotonic()
        if self._denied_since is None:
            self._denied_since = now
        return now - self._denied_since < self._timing.denied

    def _count(self, cause: str) -> None:
        """Counts how a list or a watch ended."""
        metrics.WATCH_ENDS.labels(self._resource.plural, cause).inc()

    async def _rest(self, error: Exception, at_least: float = 0.0) -> None:
        now = time.monotonic()
        failures = self._streak.count(now, self._timing.healthy) + 1
        delay = max(self._backoff.delay(failures, random.random()), at_least)  # noqa: S311 -- jitter
        self._streak = Streak(failures, now + delay)
        log.warning(
            "watch failed, trying again",
            extra={
                "resource": self._resource.plural,
                "error": str(error),
                "delay": round(delay, 3),
                "next": "watch" if self._version else "list",
            },
        )
        with anyio.move_on_after(delay):
            await self._client.reachability.wait_until_back()

    async def _list(self) -> str:
        """Lists everything and replaces the store's content; returns the version to watch from."""
        started = time.monotonic()
        version, listed = await self._pages(limit=self._timing.page)
        changes = await self._replace(listed)
        self._store.note_listed()
        metrics.LISTS.labels(self._resource.plural).inc()
        log.info(
            "listed",
            extra={
                "resource": self._resource.plural,
                "objects": len(listed),
                "changes": changes,
                "version": version,
                "seconds": round(time.monotonic() - started, 3),
            },
        )
        return version

    async def _replace(self, listed: list[Stored]) -> int:
        """Returns the number of changes. If cancelled, it stores and announces the rest at once."""
        steps = self._store.replacing(listed)
        count = 0
        turns = Turns()
        try:
            for change in steps:
                count += change is not None
                await turns.share()
        finally:
            count += sum(change is not None for change in steps)
        return count

    async def _pages(self, limit: int) -> tuple[str, list[Stored]]:
        listed: list[Stored] = []
        query = {**self._selected, "limit": str(limit)}
        in_one = True  # whether one answer may have everything
        while True:
            most = self._timing.page_limit
            if limit > 1 and "limit" in query:
                most = min(most, self._timing.page_target)
            try:
                page, size = await self._page(query, most)
            except AnswerTooLong:
                if limit == 1:
                    raise
                in_one = in_one and "limit" in query
                limit //= 2
                query["limit"] = str(limit)
                continue
            except ApiError as error:
                if error.status != 410 or "continue" not in query or not in_one:
                    raise
                # The continue token expired: list everything in one answer, like client-go.
                listed.clear()
                query = dict(self._selected)
                continue
            listed.extend(await self._items(page))
            if listed:
                await self._get_ready()
            token = page["metadata"].get("continue")
            if not token:
                return page["metadata"]["resourceVersion"], listed
            query["continue"] = token
            if size <= most // 4:  # the large objects were on an earlier page
                limit = min(2 * limit, self._timing.page)
                query["limit"] = str(limit)

    async def _get_ready(self) -> None:
        if self._prepare is not None:
            await self._prepare()
            self._prepare = None

    async def _items(self, page: dict[str, Any]) -> list[Stored]:
        """Reuses stored items whose version is unchanged: copies would double the memory."""
        api_version, kind = str(page.get("apiVersion", "")), str(page.get("kind", "")).removesuffix("List")
        items = []
        turns = Turns()
        try:
            for item in page.get("items") or ():
                await turns.share()
                listed = self._pack(item, api_version, kind)
                old = self._store.get(listed.key)
                items.append(old if old is not None and old.is_same(listed) else self._store.share(listed))
        except (ValueError, TypeError, AttributeError) as error:
            message = f"the list contains something that is not an object: {error}"
            raise BadStream(message) from error
        return items

    def _pack(self, obj: dict[str, Any], api_version: str = "", kind: str = "") -> Stored:
        return pack_metadata(obj) if self._metadata_only else self._store.pack(obj, api_version, kind)

    async def _page(self, query: dict[str, str], most: int) -> tuple[dict[str, Any], int]:
        """Returns a page and its size in bytes."""
        accept = METADATA_LIST if self._metadata_only else JSON
        timeout = self._timing.list_timeout
        text = await self._client.request("GET", self._path, query=query, accept=accept, timeout=timeout, most=most)
        try:
            page = read_json(text)
        except ValueError as error:
            message = f"the list is not JSON: {error}"
            raise BadStream(message) from error
        if (
            not isinstance(page, dict)
            or not isinstance(page.get("metadata"), dict)
            or not isinstance(page["metadata"].get("resourceVersion"), str)
        ):
            message = "the list has no resourceVersion"
            raise BadStream(message)
        return page, len(text)

    async def _watch(self, version: str) -> None:
        """Returns when the server ends the watch on time; raises _Ended if it ends much sooner."""
        timing = self._timing
        lasting = timing.watch_least + (timing.watch_most - timing.watch_least) * random.random()  # noqa: S311 -- jitter
        query = {
            **self._selected,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(int(lasting), 1)),
        }
        started = time.monotonic()
        try:
            async with self._client.stream(
                self._path,
                query=query,
                inactivity=timing.inactivity,
                line_limit=timing.line_limit,
                accept=METADATA if self._metadata_only else JSON,
            ) as lines:
                self._denied_since = None
                self._store.allow()
                log.debug("watching", extra={"resource": self._resource.plural, "version": version})
                async for line in lines:
                    if self._prepare is not None and b'"BOOKMARK"' not in line:
                        await self._get_ready()
                    self._take(line)
        except ApiError as error:
            if error.status == 410 or "Too large resource version" in error.message:
                raise _Expired(error.message) from error
            raise
        if time.monotonic() - started < min(timing.short, lasting):
            message = "the watch ended at once"
            raise _Ended(message)

    def _take(self, line: bytes) -> None:
        """Handles one event. Raises BadStream, _Expired, ApiError."""
        try:
            event = read_json(line)
            kind, obj = event["type"], event["object"]
            version = (obj.get("metadata") or {}).get("resourceVersion")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadStream(self._quote(line)) from error
        if kind == "ERROR":
            raise read_status(obj)
        known = isinstance(kind, str) and kind in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
        if not isinstance(version, str) or not known:
            raise BadStream(self._quote(line))
        if self._version is not None and is_older(version, than=self._version):
            message = "resourceVersions went backwards: the API server was restored"
            raise _Expired(message)
        if kind != "BOOKMARK":
            self._apply(kind, obj)
        self._version = version

    def _quote(self, line: bytes) -> str:
        """A line that is not an event may still contain a Secret's content."""
        return f"not an event: {len(line)} bytes" if self._metadata_only else f"not an event: {line[:200]!r}"

    def _apply(self, kind: str, obj: dict[str, Any]) -> None:
        gone = kind == "DELETED"
        try:
            if not gone and self._store.knows(obj):  # mostly our own write, already stored from its answer
                return
            stored = self._pack(obj)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadStream(str(error)) from error
        if gone:
            self._store.remove(stored.key, stored.uid)
        else:
            self._store.put(self._store.share(stored))
