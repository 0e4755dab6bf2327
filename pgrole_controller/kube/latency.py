"""How long requests take, by verb, resource and class of code: for the metrics. No label holds a name of an object."""

import time
from types import TracebackType
from typing import Self

from pgrole_controller import metrics
from pgrole_controller.kube.errors import Unreachable

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Latency:
    """Measures one request, from its beginning to the end of the context; one that is cancelled is left out.

    Set `status` once the answer has begun.
    """

    __slots__ = ("_began", "_resource", "_verb", "status")

    def __init__(self, method: str, path: str, *, watch: bool = False) -> None:
        self._resource, named = read_path(path)
        self._verb = "watch" if watch else name_verb(method, named=named)
        self.status: int | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None and not isinstance(error, Unreachable):
            return
        code = "none" if self.status is None else f"{self.status // 100}xx"
        seconds = time.perf_counter() - self._began
        metrics.API_REQUEST_SECONDS.labels(self._verb, self._resource, code).observe(seconds)


def read_path(path: str) -> tuple[str, bool]:
    """The resource of a path, as `pgroles` or `pgroles/status`, and whether it names one object."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return metrics.OTHER, False
    return "/".join((rest[0], *rest[2:3])), len(rest) > 1


def name_verb(method: str, *, named: bool) -> str:
    """As RBAC calls it."""
    if method == "GET":
        return "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return _VERBS.get(method, metrics.OTHER)
