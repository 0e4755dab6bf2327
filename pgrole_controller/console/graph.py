"""Memberships around one role: its members on the left, the roles that it is a member of on the right.

They are those in `spec.memberOf` of the PgRoles that the viewer may list. Roles without a PgRole have no link.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pgrole_controller.console.role_summary import RoleSummary
from pgrole_controller.console.template_files import quote_segment
from pgrole_controller.core.access.graph_svg import render_svg
from pgrole_controller.core.access.membership_graph import EdgeKind, GraphEdge, GraphNode, MembershipGraph, NodeKind
from pgrole_controller.core.errors import make_legible
from pgrole_controller.core.request import Key

_DEPTH = 3
_MOST_IN_COLUMN = 8


@dataclass(frozen=True, slots=True)
class RoleNeighbours:
    """`members` and `groups`: direct ones, for the lists beside the picture."""

    graph: MembershipGraph
    members: tuple[tuple[str, Key | None], ...]
    groups: tuple[tuple[str, Key | None], ...]

    @property
    def svg(self) -> Markup:
        return Markup(render_svg(self.graph, style="", bare=True))  # noqa: S704 -- it escapes what it is given


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

    def around(self, subject: RoleSummary) -> RoleNeighbours:
        """Returns everything within three memberships of `subject`, at most eight roles at each distance and side."""
        self._groups[subject.role] = list(dict.fromkeys(subject.member_of))
        self._summaries[subject.role] = subject
        nodes = [self._node(subject.role, is_subject=True)]
        places = {subject.role: 0}
        edges: list[GraphEdge] = []
        for side, neighbours in ((-1, self._members), (1, self._groups)):
            before = [subject.role]
            for distance in range(1, _DEPTH + 1):
                found = sorted({name for each in before for name in neighbours.get(each, ())} - places.keys())
                shown, hidden = found[:_MOST_IN_COLUMN], found[_MOST_IN_COLUMN:]
                nodes += [self._node(name) for name in shown]
                places |= dict.fromkeys(shown, side * distance)
                if hidden:
                    more = GraphNode(f"more {side * distance}", f"and {len(hidden):,} more", NodeKind.MORE, "not drawn")
                    nodes.append(more)
                    edges += _edges_of_more(more.id, before, neighbours, frozenset(hidden), side)
                before = shown
        edges += [
            GraphEdge(f"role {name}", f"role {group}", EdgeKind.INHERIT)
            for name, place in places.items()
            for group in self._groups.get(name, ())
            if places.get(group, place) > place
        ]
        name = make_legible(subject.role)
        graph = MembershipGraph(
            f"Memberships of {name}",
            f"Members of {name} are on the left, roles that it is a member of on the right",
            tuple(nodes),
            tuple(edges),
        )
        return RoleNeighbours(
            graph,
            members=tuple((name, self._key(name)) for name in self._members.get(subject.role, ())[:200]),
            groups=tuple((name, self._key(name)) for name in self._groups.get(subject.role, ())),
        )

    def _node(self, name: str, *, is_subject: bool = False) -> GraphNode:
        found = self._summaries.get(name)
        label, node = make_legible(name), f"role {name}"
        if is_subject:
            return GraphNode(node, label, NodeKind.GROUP, "this role", focus=True)
        if found is None:
            return GraphNode(node, label, NodeKind.FOREIGN, "no PgRole")
        link = f"/roles/{quote_segment(found.key.namespace)}/{quote_segment(found.key.name)}"
        return GraphNode(node, label, NodeKind.LOGIN if found.login else NodeKind.GROUP, found.state.words, link=link)

    def _key(self, name: str) -> Key | None:
        found = self._summaries.get(name)
        return found.key if found else None


def _edges_of_more(
    more: str, before: Sequence[str], neighbours: Mapping[str, list[str]], hidden: frozenset[str], side: int
) -> Iterable[GraphEdge]:
    """Joins the node that stands for hidden roles with those drawn beside it."""
    for name in before:
        if not hidden.isdisjoint(neighbours.get(name, ())):
            ends = (more, f"role {name}") if side < 0 else (f"role {name}", more)
            yield GraphEdge(*ends, EdgeKind.MORE)
