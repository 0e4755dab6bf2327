"""What the server part hands to the pages, everything that one viewer may see at one moment, and the page it gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgrole_controller.console.viewed_objects import ViewedObjects
from pgrole_controller.core.request import Key


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """An object that was read for one page. `answer`: as the API server sent it, or None; then `problem` says why."""

    answer: bytes | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one viewer may see, at one moment.

    `roles` reads objects only when they are asked for: a page that shows one role parses one.
    """

    roles: ViewedObjects[Key]  # PgRole objects as `keep_fields` returns them
    servers: Mapping[str, Mapping[str, Any]]  # PgServer objects by name; empty if they are hidden
    servers_hidden: bool  # the viewer may not list PgServers
    namespaces: tuple[str, ...] | None  # None: all namespaces; otherwise those whose PgRoles the viewer may list
    connected: bool  # False: the API server does not answer, and this is what it last sent
    read_at: datetime  # UTC; when the API server last confirmed it
    viewer: str  # user name for the header; may be empty
    reading: bool = False  # the first list is incomplete: this is what arrived so far
    accepted: bool = True  # False: the API server no longer accepts the credentials of the kubeconfig
    cut: bool = False  # the viewer may be permitted to list more namespaces, but the console watches no more
    version: int = 0  # another number after each change


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """What a page is asked for. `path` is decoded. `csrf`: for the form that logs out; empty if the viewer cannot.

    `fragment`: only its <main>, for a page that is open. `fetched`: for a page with YAML.
    """

    path: str
    query: Mapping[str, str]
    csrf: str
    now: datetime
    fragment: bool = False
    fetched: FetchedObject | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`status`: of HTTP. `html`: the document, or only its <main>."""

    status: int
    html: str
