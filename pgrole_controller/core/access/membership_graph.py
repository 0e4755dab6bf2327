"""A picture of memberships as data: nodes and edges around a role, or towards an object. Also renders it as DOT.

`graph_svg.render_svg` draws it.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgrole_controller.core.access.role_graph import GroupEdge, RoleGraph
from pgrole_controller.core.errors import make_legible

#: Maximum number of nodes of one picture; one more node counts the others.
MOST_NODES = 60


class NodeKind(StrEnum):
    """What a node stands for; also its CSS class."""

    LOGIN = "login"
    GROUP = "group"
    SUPERUSER = "superuser"
    EVERYONE = "everyone"
    OBJECT = "object"
    FOREIGN = "foreign"
    MORE = "more"


class EdgeKind(StrEnum):
    """What an edge lets its member do; also its CSS class."""

    INHERIT = "inherit"
    SET_ROLE = "set-role"
    ADMIN = "admin"
    GRANT = "grant"
    MORE = "more"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """`id` is unique in its graph. `note`: a short second line. `focus`: what the picture is about. `link`: a URL."""

    id: str
    label: str
    kind: NodeKind
    note: str = ""
    focus: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """From a member to its group, or from a role to an object; by ids of nodes."""

    tail: str
    head: str
    kind: EdgeKind
    label: str = ""


@dataclass(frozen=True, slots=True)
class MembershipGraph:
    """`title` and `description` are for people who do not see the picture."""

    title: str
    description: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def around_role(graph: RoleGraph, role: int, most: int = MOST_NODES) -> MembershipGraph:
    """Returns a role with everything it is a member of and every member it has, nearest first."""
    up = _nearest(role, lambda one: [edge.group for edge in graph.groups(one)])
    down = _nearest(role, lambda one: [edge.member for edge in graph.members(one)])
    groups = sorted((distance, graph.name(one), one) for one, distance in up.items() if one != role)
    members = sorted((distance, graph.name(one), one) for one, distance in down.items() if one not in up)
    half = max((most - 1) // 2, most - 1 - len(members))
    kept_groups = groups[:half]
    kept_members = members[: most - 1 - len(kept_groups)]
    kept = {role, *(one for *_, one in kept_groups), *(one for *_, one in kept_members)}
    name = graph.name(role)
    nodes = [_node(graph, one, focus=one == role) for one in sorted(kept, key=lambda one: (graph.name(one), one))]
    edges = list(_edges(graph, kept))
    own = _id(role)
    for hidden, tail, head, what in (
        (len(groups) - len(kept_groups), own, "more-groups", "roles it is a member of"),
        (len(members) - len(kept_members), "more-members", own, "members"),
    ):
        if hidden:
            nodes.append(
                GraphNode("more-groups" if tail == own else "more-members", f"+{hidden:,} more", NodeKind.MORE, what)
            )
            edges.append(GraphEdge(tail, head, EdgeKind.MORE))
    return MembershipGraph(
        f"Memberships of {make_legible(name)}",
        f"{make_legible(name)} is a member of {_count(len(groups), 'role')} and has {_count(len(members), 'member')}, "
        "directly or through others. Members are on the left of the roles that they are members of.",
        tuple(nodes),
        tuple(edges),
    )


def towards_object(
    graph: RoleGraph,
    label: str,
    holders: Mapping[int, Sequence[str]],
    note: str = "",
    most: int = MOST_NODES,
) -> MembershipGraph:
    """Returns an object, the roles that hold privileges on it, and the members who reach it through them.

    `holders`: privileges by role; 0 is PUBLIC. `note`: e.g. the object's owner.
    """
    down: dict[int, int] = dict.fromkeys(holders, 0)
    left = deque(sorted(holders, key=graph.name))
    while left:
        one = left.popleft()
        for edge in sorted(graph.members(one), key=lambda edge: graph.name(edge.member)):
            if edge.member not in down and (edge.inherit or edge.set_role):
                down[edge.member] = down[one] + 1
                left.append(edge.member)
    ordered = sorted(down, key=lambda one: (down[one], graph.name(one), one))
    kept = set(ordered[: most - 1])
    nodes = [_node(graph, one) for one in ordered if one in kept]
    nodes.append(GraphNode("object", make_legible(label), NodeKind.OBJECT, make_legible(note), focus=True))
    edges = [*_edges(graph, kept)]
    edges += [
        GraphEdge(_id(one), "object", EdgeKind.GRANT, _shorten(holders[one]))
        for one in ordered
        if one in holders and one in kept
    ]
    if len(ordered) > len(kept):
        nodes.append(GraphNode("more", f"+{len(ordered) - len(kept):,} more", NodeKind.MORE, "roles"))
        edges.append(GraphEdge("more", "object", EdgeKind.MORE))
    return MembershipGraph(
        f"Access to {make_legible(label)}",
        f"{_count(len(holders), 'role')} with privileges on {make_legible(label)}, and "
        f"{_count(len(down) - len(holders), 'role')} with access through them. "
        "Members are on the left of the roles that they are members of.",
        tuple(nodes),
        tuple(edges),
    )


def _nearest(start: int, following: Callable[[int], Iterable[int]]) -> dict[int, int]:
    found = {start: 0}
    left = deque([start])
    while left:
        one = left.popleft()
        for after in following(one):
            if after not in found:
                found[after] = found[one] + 1
                left.append(after)
    return found


def _node(graph: RoleGraph, oid: int, *, focus: bool = False) -> GraphNode:
    role = graph.roles.get(oid)
    if role is None:
        return GraphNode(_id(oid), "PUBLIC" if oid == 0 else str(oid), NodeKind.EVERYONE, "every role", focus)
    label = make_legible(role.name)
    if role.superuser:
        return GraphNode(_id(oid), label, NodeKind.SUPERUSER, "superuser", focus)
    note = "bypasses RLS" if role.bypass_rls else "login" if role.login else "group"
    return GraphNode(_id(oid), label, NodeKind.LOGIN if role.login else NodeKind.GROUP, note, focus)


def _edges(graph: RoleGraph, kept: Collection[int]) -> Iterable[GraphEdge]:
    for member in sorted(kept):
        for edge in sorted(graph.groups(member), key=lambda edge: edge.group):
            if edge.group in kept:
                kind, label = _kind_of(edge)
                yield GraphEdge(_id(edge.member), _id(edge.group), kind, label)


def _kind_of(edge: GroupEdge) -> tuple[EdgeKind, str]:
    if edge.inherit:
        return EdgeKind.INHERIT, "database owner" if edge.implicit else "admin" if edge.admin else ""
    if edge.set_role:
        return EdgeKind.SET_ROLE, "SET ROLE"
    return EdgeKind.ADMIN, "ADMIN only" if edge.admin else "no option"


def _id(oid: int) -> str:
    return f"role-{oid}"


def _shorten(privileges: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(privileges[:most])
    return f"{shown}, +{len(privileges) - most}" if len(privileges) > most else shown


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_SHAPES = {
    NodeKind.LOGIN: "box",
    NodeKind.GROUP: "ellipse",
    NodeKind.SUPERUSER: "octagon",
    NodeKind.EVERYONE: "ellipse",
    NodeKind.OBJECT: "cylinder",
    NodeKind.FOREIGN: "ellipse",
    NodeKind.MORE: "plaintext",
}
_STYLES = {
    EdgeKind.INHERIT: "solid",
    EdgeKind.SET_ROLE: "dashed",
    EdgeKind.ADMIN: "dotted",
    EdgeKind.GRANT: "bold",
    EdgeKind.MORE: "dotted",
}


def render_dot(graph: MembershipGraph) -> str:
    """Renders the graph in the language of Graphviz."""
    lines = [f"digraph {_quote(graph.title)} {{", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    for node in graph.nodes:
        text = f"{node.label}\n{node.note}" if node.note else node.label
        focus = ", penwidth=2" if node.focus else ""
        lines.append(f"  {_quote(node.id)} [label={_quote(text)}, shape={_SHAPES[node.kind]}{focus}];")
    for edge in graph.edges:
        label = f", label={_quote(edge.label)}" if edge.label else ""
        lines.append(f"  {_quote(edge.tail)} -> {_quote(edge.head)} [style={_STYLES[edge.kind]}{label}];")
    return "\n".join([*lines, "}", ""])


def _quote(text: str) -> str:
    """Quotes a text. DOT has one escape in quotes, but labels interpret backslashes, so these are doubled. All line
    breaks are ours.
    """
    lines = (make_legible(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'
