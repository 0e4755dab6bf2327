"""The list of roles: searched, filtered, sorted, and cut into pages on the server."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from pgrole_controller.console.object_state import ObjectState
from pgrole_controller.console.role_summary import RoleSummary
from pgrole_controller.core.errors import make_legible

PAGE_ROWS = 100
_LONGEST_SEARCH = 128
_MOST_CHOICES = 1000

_SORTS: Mapping[str, tuple[str, Callable[[RoleSummary], object]]] = {
    "state": ("State", lambda role: (role.state.rank, role.key)),
    "name": ("Name", lambda role: role.key.name),
    "role": ("Role in PostgreSQL", lambda role: role.role),
    "namespace": ("Namespace", lambda role: role.key),
    "server": ("Server", lambda role: (role.server, role.key)),
    "drift": ("Latest drift", lambda role: (-role.drifts[0].time.timestamp() if role.drifts else 0.0, role.key)),
    "drifts": ("Most drifts", lambda role: (-role.drift_count, role.key)),
}


@dataclass(frozen=True, slots=True)
class RoleQuery:
    """What a viewer asks for. Values that do not exist are kept in the form, and match nothing."""

    search: str = ""
    namespace: str = ""
    server: str = ""
    state: str = ""
    sort: str = "state"
    page: int = 1

    def link(self, **changes: str | int) -> str:
        """Returns the URL of this list with `changes`. Without a page of its own, it begins at the first."""
        values = {
            "q": self.search,
            "namespace": self.namespace,
            "server": self.server,
            "state": self.state,
            "sort": self.sort,
            "page": 1,
            **changes,
        }
        defaults = {"sort": "state", "page": 1}
        shown = {name: value for name, value in values.items() if value not in ("", defaults.get(name))}
        return f"/roles?{urlencode(shown)}" if shown else "/roles"

    @property
    def is_filtered(self) -> bool:
        return bool(self.search or self.namespace or self.server or self.state)


@dataclass(frozen=True, slots=True)
class StateChoice:
    """A state to filter by, and how many roles have it among those that the other filters leave."""

    value: str
    words: str
    count: int


@dataclass(frozen=True, slots=True)
class RolesPage:
    """Rows `first` to `last` of `matching`, counted from 1. `total`: roles that the viewer may list.

    `shortened`: roles among them of which something is left out.
    """

    query: RoleQuery
    rows: tuple[RoleSummary, ...]
    first: int
    last: int
    matching: int
    total: int
    pages: int
    namespaces: tuple[str, ...]
    servers: tuple[str, ...]
    states: tuple[StateChoice, ...]
    sorts: tuple[tuple[str, str], ...]
    shortened: int

    @property
    def one_server(self) -> bool:
        return len(self.servers) < 2


def read_query(query: Mapping[str, str]) -> RoleQuery:
    """Reads the query of a URL; what makes no sense there counts as absent."""
    page = query.get("page", "")
    sort = query.get("sort", "")
    return RoleQuery(
        search=query.get("q", "").strip()[:_LONGEST_SEARCH],
        namespace=query.get("namespace", "")[:256],
        server=query.get("server", "")[:256],
        state=query.get("state", "")[:32],
        sort=sort if sort in _SORTS else "state",
        page=int(page) if page.isascii() and page.isdigit() and len(page) <= 9 else 1,
    )


def view_roles(query: RoleQuery, summaries: Sequence[RoleSummary]) -> RolesPage:
    words = make_legible(query.search).casefold().split()
    found = [each for each in summaries if _matches(each, query, words)]
    counts = Counter(each.state for each in found)
    if query.state:
        found = [each for each in found if each.state == query.state]
    found.sort(key=_SORTS[query.sort][1])  # type: ignore[arg-type]  # each key is of one type
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(1, query.page), pages)
    start = (page - 1) * PAGE_ROWS
    rows = tuple(found[start : start + PAGE_ROWS])
    return RolesPage(
        query=replace(query, page=page),
        rows=rows,
        first=start + 1 if rows else 0,
        last=start + len(rows),
        matching=len(found),
        total=len(summaries),
        pages=pages,
        namespaces=tuple(sorted({each.key.namespace for each in summaries}))[:_MOST_CHOICES],
        servers=tuple(sorted({each.server for each in summaries}))[:_MOST_CHOICES],
        states=tuple(
            StateChoice(state.value, state.words, counts[state])
            for state in ObjectState
            if counts[state] or state == query.state
        ),
        sorts=tuple((value, words) for value, (words, _) in _SORTS.items()),
        shortened=sum(bool(each.left_out) for each in summaries),
    )


def _matches(role: RoleSummary, query: RoleQuery, words: Sequence[str]) -> bool:
    if query.namespace and role.key.namespace != query.namespace:
        return False
    if query.server and role.server != query.server:
        return False
    if not words:
        return True
    text = make_legible(f"{role.key.namespace}/{role.key.name} {role.role} {role.reason}").casefold()  # as it is shown
    return all(word in text for word in words)
