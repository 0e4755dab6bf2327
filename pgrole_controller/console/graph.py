"""Memberships around one role as a graph in columns: its members to the left, the roles that it is in to the right.

It is made from the `spec.memberOf` of the PgRoles that the viewer may list. Roles without a PgRole have no link.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgrole_controller.console.role_summary import RoleState, RoleSummary
from pgrole_controller.core.request import Key

_DEPTH = 3
_MOST_IN_COLUMN = 8
_LETTERS = 22
NODE_WIDTH, NODE_HEIGHT = 200, 44
_COLUMN_GAP, _ROW_GAP, _MARGIN = 56, 14, 4


@dataclass(frozen=True, slots=True)
class DrawnRole:
    """One role at a place. `key`: its PgRole; None if the viewer may see none. `more`: how many it stands for."""

    name: str
    label: str
    key: Key | None
    state: RoleState | None
    x: int
    y: int
    is_subject: bool = False
    more: int = 0


@dataclass(frozen=True, slots=True)
class GraphLine:
    """A membership, as the path of an SVG from the member to the role that it is in."""

    path: str


@dataclass(frozen=True, slots=True)
class RoleNeighbours:
    """`members` and `groups`: direct ones, for the list beside the drawing."""

    nodes: tuple[DrawnRole, ...]
    lines: tuple[GraphLine, ...]
    width: int
    height: int
    members: tuple[tuple[str, Key | None], ...]
    groups: tuple[tuple[str, Key | None], ...]
    node_width: int = NODE_WIDTH
    node_height: int = NODE_HEIGHT


class Memberships:
    """Memberships that PgRoles of one server declare, by the roles' names in PostgreSQL."""

    __slots__ = ("_groups", "_members", "_summaries")

    def __init__(self, summaries: Iterable[RoleSummary], server: str) -> None:
        self._summaries: dict[str, RoleSummary] = {}
        self._groups: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = defaultdict(list)
        for each in summaries:
            if each.server != server or (each.role in self._summaries and each.reason == "Conflict"):
                continue
            self._summaries[each.role] = each
            self._groups[each.role] = list(dict.fromkeys(each.member_of))
        for role, groups in self._groups.items():
            for group in groups:
                self._members[group].append(role)

    def draw(self, subject: RoleSummary) -> RoleNeighbours:
        """Places what is within three memberships of `subject`, at most eight roles in each column."""
        self._groups[subject.role] = list(dict.fromkeys(subject.member_of))
        self._summaries[subject.role] = subject
        left = self._layers(subject.role, self._members)
        right = self._layers(subject.role, self._groups)
        columns = [*reversed(left), [subject.role], *right]
        tallest = max(min(len(column), _MOST_IN_COLUMN + 1) for column in columns)
        height = 2 * _MARGIN + tallest * (NODE_HEIGHT + _ROW_GAP) - _ROW_GAP
        nodes: list[DrawnRole] = []
        places: dict[str, tuple[int, int, int]] = {}
        for number, column in enumerate(columns):
            shown = column[:_MOST_IN_COLUMN]
            rows = len(shown) + (len(column) > len(shown))
            x = _MARGIN + number * (NODE_WIDTH + _COLUMN_GAP)
            top = (height - rows * (NODE_HEIGHT + _ROW_GAP) + _ROW_GAP) // 2
            for row, name in enumerate(shown):
                y = top + row * (NODE_HEIGHT + _ROW_GAP)
                places[name] = (number, x, y)
                nodes.append(self._node(name, x, y, is_subject=name == subject.role))
            if len(column) > len(shown):
                y = top + len(shown) * (NODE_HEIGHT + _ROW_GAP)
                more = len(column) - len(shown)
                nodes.append(DrawnRole("", f"and {more} more", None, None, x, y, more=more))
        return RoleNeighbours(
            nodes=tuple(nodes),
            lines=tuple(self._lines(places)),
            width=2 * _MARGIN + len(columns) * (NODE_WIDTH + _COLUMN_GAP) - _COLUMN_GAP,
            height=height,
            members=tuple((name, self._key(name)) for name in self._members.get(subject.role, ())[:200]),
            groups=tuple((name, self._key(name)) for name in self._groups.get(subject.role, ())),
        )

    def _layers(self, start: str, neighbours: Mapping[str, list[str]]) -> list[list[str]]:
        seen, layers, current = {start}, [], [start]
        for _ in range(_DEPTH):
            found = list(
                dict.fromkeys(name for each in current for name in neighbours.get(each, ()) if name not in seen)
            )
            if not found:
                break
            seen.update(found)
            layers.append(sorted(found))
            current = layers[-1][:_MOST_IN_COLUMN]
        return layers

    def _lines(self, places: Mapping[str, tuple[int, int, int]]) -> Iterable[GraphLine]:
        for name, (column, x, y) in places.items():
            for group in self._groups.get(name, ()):
                place = places.get(group)
                if place is None or place[0] <= column:
                    continue
                start_x, start_y = x + NODE_WIDTH, y + NODE_HEIGHT // 2
                end_x, end_y = place[1], place[2] + NODE_HEIGHT // 2
                middle = (start_x + end_x) // 2
                yield GraphLine(f"M{start_x} {start_y} C{middle} {start_y} {middle} {end_y} {end_x - 6} {end_y}")

    def _node(self, name: str, x: int, y: int, *, is_subject: bool) -> DrawnRole:
        found = self._summaries.get(name)
        label = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        return DrawnRole(name, label, self._key(name), found.state if found else None, x, y, is_subject=is_subject)

    def _key(self, name: str) -> Key | None:
        found = self._summaries.get(name)
        return found.key if found else None
