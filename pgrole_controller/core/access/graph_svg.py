"""Draws a membership graph as SVG, from left to right: members, the roles they are members of, the object.

Nodes stand in layers. An edge that crosses layers has a place of its own in each, so that it passes between nodes.
Colours are custom properties, which the surrounding page can set; the default style has a light and a dark scheme.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from unicodedata import east_asian_width

from pgrole_controller.core.access.membership_graph import EdgeKind, GraphEdge, GraphNode, MembershipGraph, NodeKind

_LONGEST_LABEL = 28
_LETTER, _SMALL_LETTER = 7.6, 6.2
_HEIGHT, _PADDING = 40.0, 16.0
_ROW_GAP, _LAYER_GAP, _MARGIN = 18.0, 72.0, 24.0
_TITLE_HEIGHT, _LEGEND_HEIGHT = 40.0, 44.0
_LANE = 14.0
_SWEEPS = 12

STYLE = """
.pgrole-graph {
  --ground: #ffffff; --ink: #1b2330; --quiet: #5d6878; --line: #98a3b3; --card: #f5f7fa; --edge: #c9d0da;
  --login: #1f6feb; --login-card: #eaf2ff; --superuser: #b42318; --superuser-card: #fdeeec;
  --object: #0d7a5f; --object-card: #e6f6f1;
  font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; font-size: 13px;
  max-width: 100%; height: auto;
}
@media (prefers-color-scheme: dark) {
  .pgrole-graph {
    --ground: #11161d; --ink: #e6ebf2; --quiet: #9aa6b6; --line: #6c7a8d; --card: #1b232d; --edge: #3a4656;
    --login: #6ea8fe; --login-card: #14263f; --superuser: #ff8a7a; --superuser-card: #3a1a17;
    --object: #4fd1ae; --object-card: #0f2f27;
  }
}
.pgrole-graph .ground { fill: var(--ground); }
.pgrole-graph text { fill: var(--ink); }
.pgrole-graph .title { font-size: 15px; font-weight: 600; }
.pgrole-graph .note, .pgrole-graph .edge-label, .pgrole-graph .legend text { fill: var(--quiet); font-size: 11px; }
.pgrole-graph .node rect { fill: var(--card); stroke: var(--edge); stroke-width: 1.2; }
.pgrole-graph .node.login rect { fill: var(--login-card); stroke: var(--login); }
.pgrole-graph .node.superuser rect { fill: var(--superuser-card); stroke: var(--superuser); }
.pgrole-graph .node.object rect { fill: var(--object-card); stroke: var(--object); }
.pgrole-graph .node.everyone rect, .pgrole-graph .node.foreign rect { stroke-dasharray: 2 3; stroke: var(--line); }
.pgrole-graph .node.more rect { fill: none; stroke: var(--edge); stroke-dasharray: 4 4; }
.pgrole-graph .node.focus rect { stroke-width: 2.6; }
.pgrole-graph .node.focus .label { font-weight: 600; }
.pgrole-graph .edge path { fill: none; stroke: var(--line); stroke-width: 1.4; }
.pgrole-graph .edge.set-role path { stroke-dasharray: 6 4; }
.pgrole-graph .edge.admin path, .pgrole-graph .edge.more path { stroke-dasharray: 1.5 4; stroke-linecap: round; }
.pgrole-graph .edge.grant path { stroke: var(--object); stroke-width: 1.8; }
.pgrole-graph .edge .arrow { fill: var(--line); stroke: none; }
.pgrole-graph .edge.grant .arrow { fill: var(--object); }
.pgrole-graph .edge-label { paint-order: stroke; stroke: var(--ground); stroke-width: 4px; stroke-linejoin: round; }
"""


@dataclass(slots=True)
class _NodePlace:
    """Where a node stands, or where an edge crosses a layer: then `node` is None. `y` is the middle."""

    layer: int
    height: float
    width: float
    node: GraphNode | None = None
    x: float = 0.0
    y: float = 0.0


def render_svg(graph: MembershipGraph, *, style: str = STYLE, bare: bool = False) -> str:
    """Renders the whole picture as one self-contained `<svg>` element.

    `style`: CSS; empty if the page has it. `bare`: without visible title, legend and background, for a page with its
    own.
    """
    places, routes = _lay_out(graph)
    right = max((place.x + place.width for place in places.values()), default=0.0)
    low = max((place.y + place.height / 2 for place in places.values()), default=_TITLE_HEIGHT)
    legend, legend_width = ("", 0.0) if bare else _legend(graph, low + 30)
    width = right + 4 if bare else max(right, legend_width, _width(graph.title, 8.6) + _MARGIN) + _MARGIN
    height = low + (4 if bare else _LEGEND_HEIGHT + 8)
    left, top = (_MARGIN - 4, _TITLE_HEIGHT + 8) if bare else (0.0, 0.0)
    width, height = width - left, height - top
    role = "group" if any(node.link for node in graph.nodes) else "img"  # an image hides links from screen readers
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pgrole-graph" role="{role}" '
        f'aria-labelledby="pgrole-graph-title pgrole-graph-description" '
        f'viewBox="{left:.0f} {top:.0f} {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">',
        f'<title id="pgrole-graph-title">{_text(graph.title)}</title>',
        f'<desc id="pgrole-graph-description">{_text(graph.description)}</desc>',
        f"<style>{style}</style>" if style else "",
        "" if bare else f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
        "" if bare else f'<text class="title" x="{_MARGIN:.0f}" y="28">{_text(graph.title)}</text>',
        *(_draw_edge(edge, [places[key] for key in route]) for edge, route in routes),
        *(_draw_label(edge, [places[key] for key in route]) for edge, route in routes if edge.label),
        *(_draw_node(place) for place in places.values() if place.node is not None),
        legend,
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _lay_out(graph: MembershipGraph) -> tuple[dict[str, _NodePlace], list[tuple[GraphEdge, list[str]]]]:
    nodes = {node.id: node for node in graph.nodes}
    edges = [edge for edge in graph.edges if edge.tail in nodes and edge.head in nodes and edge.tail != edge.head]
    layers = _assign_layers(nodes, edges)
    places = {key: _NodePlace(layers[key], _HEIGHT, _node_width(node), node) for key, node in nodes.items()}
    routes: list[tuple[GraphEdge, list[str]]] = []
    for number, edge in enumerate(edges):
        between = range(layers[edge.tail] + 1, layers[edge.head])
        bends = [f"\0{number}-{layer}" for layer in between]
        for key, layer in zip(bends, between, strict=True):
            places[key] = _NodePlace(layer, _LANE, 0.0)
        routes.append((edge, [edge.tail, *bends, edge.head]))
    rows = _order(places, routes)
    _set_positions(places, rows, routes)
    return places, routes


def _assign_layers(nodes: Mapping[str, GraphNode], edges: Sequence[GraphEdge]) -> dict[str, int]:
    """Assigns each node the longest path from a node without members, then moves it as far right as its groups
    allow.
    """
    layers = dict.fromkeys(nodes, 0)
    for _ in nodes:  # ends early, and after this many rounds even with a cycle
        moved = False
        for edge in edges:
            if layers[edge.head] <= layers[edge.tail] and layers[edge.tail] + 1 < len(nodes):
                layers[edge.head], moved = layers[edge.tail] + 1, True
        if not moved:
            break
    heads: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        heads[edge.tail].append(edge.head)
    for key in sorted(nodes, key=lambda one: -layers[one]):
        if heads[key]:
            layers[key] = max(layers[key], min(layers[head] for head in heads[key]) - 1)
    first = min(layers.values(), default=0)
    return {key: layer - first for key, layer in layers.items()}


def _order(places: Mapping[str, _NodePlace], routes: Sequence[tuple[GraphEdge, list[str]]]) -> list[list[str]]:
    """Orders the nodes of each layer from top to bottom with few crossings: each at the middle of its neighbours."""
    rows: list[list[str]] = [[] for _ in range(max((place.layer for place in places.values()), default=-1) + 1)]
    for key, place in places.items():
        rows[place.layer].append(key)
    left, right = _neighbours(routes)
    best, fewest = [list(row) for row in rows], _crossings(rows, right)
    for sweep in range(_SWEEPS):
        beside, numbers = (left, range(1, len(rows))) if sweep % 2 == 0 else (right, range(len(rows) - 2, -1, -1))
        for number in numbers:
            rank = {key: place for row in rows for place, key in enumerate(row)}
            middles = {
                key: sum(rank[other] for other in beside[key]) / len(beside[key]) if beside[key] else rank[key]
                for key in rows[number]
            }
            rows[number].sort(key=lambda key: (middles[key], rank[key]))
        count = _crossings(rows, right)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _neighbours(routes: Sequence[tuple[GraphEdge, list[str]]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    left: dict[str, list[str]] = defaultdict(list)
    right: dict[str, list[str]] = defaultdict(list)
    for _, route in routes:
        for one, other in pairwise(route):
            left[other].append(one)
            right[one].append(other)
    return left, right


def _crossings(rows: Sequence[Sequence[str]], right: Mapping[str, Sequence[str]]) -> int:
    count = 0
    for row, following in pairwise(rows):
        rank = {key: place for place, key in enumerate(following)}
        seen: list[int] = []
        for key in row:
            heads = [rank[head] for head in right.get(key, ()) if head in rank]
            count += sum(1 for head in heads for before in seen if before > head)
            seen += heads
    return count


def _set_positions(
    places: Mapping[str, _NodePlace], rows: Sequence[Sequence[str]], routes: Sequence[tuple[GraphEdge, list[str]]]
) -> None:
    left, right = _neighbours(routes)
    labels: dict[int, float] = defaultdict(float)
    for edge, route in routes:
        tail = places[route[0]].layer
        labels[tail] = max(labels[tail], _width(edge.label, _SMALL_LETTER))
    x = _MARGIN
    for number, row in enumerate(rows):
        width = max((places[key].width for key in row), default=0.0)
        y = _TITLE_HEIGHT + _MARGIN
        for key in row:
            place = places[key]
            place.x = x + (width - place.width) / 2 if place.node is not None else x + width / 2
            place.y = y + place.height / 2
            y += place.height + _ROW_GAP
        x += width + max(_LAYER_GAP, labels[number] + 44)
    for sweep in range(_SWEEPS):
        order = rows if sweep % 2 == 0 else rows[::-1]
        beside = left if sweep % 2 == 0 else right
        for row in order:
            _align(places, row, beside)
    top = min((place.y - place.height / 2 for place in places.values()), default=0.0)
    for place in places.values():
        place.y += _TITLE_HEIGHT + 12 - top


def _align(places: Mapping[str, _NodePlace], row: Sequence[str], beside: Mapping[str, Sequence[str]]) -> None:
    """Moves the nodes of a layer towards their neighbours, without changing their order or overlapping."""
    wanted = []
    for key in row:
        others = beside.get(key, ())
        wanted.append(sum(places[other].y for other in others) / len(others) if others else places[key].y)
    down = up = 0.0
    lower, upper = [], [0.0] * len(row)
    for place, key in enumerate(row):
        half = places[key].height / 2
        down = wanted[place] if place == 0 else max(wanted[place], down + half)
        lower.append(down)
        down += half + _ROW_GAP
    for place in range(len(row) - 1, -1, -1):
        half = places[row[place]].height / 2
        up = wanted[place] if place == len(row) - 1 else min(wanted[place], up - half)
        upper[place] = up
        up -= half + _ROW_GAP
    for place, key in enumerate(row):
        places[key].y = (lower[place] + upper[place]) / 2


def _draw_node(place: _NodePlace) -> str:
    node = place.node
    if node is None:
        return ""
    middle, top = place.x + place.width / 2, place.y - place.height / 2
    label, note = _text(_cut(node.label)), _text(_cut(node.note))
    radius = 6 if node.kind is NodeKind.OBJECT else place.height / 2 if node.kind is NodeKind.GROUP else 9
    first = place.y - 2 if note else place.y + 4.5
    lines = [
        f'<g class="node {node.kind.value}{" focus" if node.focus else ""}">',
        f"<title>{_text(node.label)}{f' ({_text(node.note)})' if node.note else ''}</title>",
        f'<rect x="{place.x:.1f}" y="{top:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" '
        f'rx="{radius:g}"/>',
        f'<text class="label" x="{middle:.1f}" y="{first:.1f}" text-anchor="middle">{label}</text>',
    ]
    if note:
        lines.append(f'<text class="note" x="{middle:.1f}" y="{place.y + 12.5:.1f}" text-anchor="middle">{note}</text>')
    drawn = "".join([*lines, "</g>"])
    if not node.link:
        return drawn
    name = f"{node.label}, {node.note}" if node.note else node.label
    return f'<a href="{escape(node.link)}" aria-label="{_text(name)}">{drawn}</a>'


def _draw_edge(edge: GraphEdge, route: Sequence[_NodePlace]) -> str:
    begin, end = route[0], route[-1]
    tip = end.x - 1.5
    points = [(begin.x + begin.width, begin.y)]
    points += [(place.x, place.y) for place in route[1:-1]]
    points.append((tip - 7, end.y))
    path = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (x + to_x) / 2
        path.append(f"C{middle:.1f},{y:.1f} {middle:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}")
    arrow = f"M{tip:.1f},{end.y:.1f}l-8,-4.2v8.4z"
    return f'<g class="edge {edge.kind.value}"><path d="{"".join(path)}"/><path class="arrow" d="{arrow}"/></g>'


def _draw_label(edge: GraphEdge, route: Sequence[_NodePlace]) -> str:
    """Draws a grant's label at the member's end, since many edges end at one object; otherwise in the middle of the
    first part.
    """
    begin, end = route[0], route[1]
    right = begin.x + begin.width
    x, y, anchor = (right + end.x) / 2, (begin.y + end.y) / 2 - 5, "middle"
    if edge.kind is EdgeKind.GRANT:
        x, y, anchor = right + 10, begin.y + (14 if end.y < begin.y else -6), "start"
    return f'<text class="edge-label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(edge.label)}</text>'


_LEGEND = {
    EdgeKind.INHERIT: "inherits privileges",
    EdgeKind.SET_ROLE: "only after SET ROLE",
    EdgeKind.ADMIN: "may only grant the role",
    EdgeKind.GRANT: "has privileges",
}


def _legend(graph: MembershipGraph, y: float) -> tuple[str, float]:
    kinds = {edge.kind for edge in graph.edges}
    x = _MARGIN
    parts = []
    for kind, words in _LEGEND.items():
        if kind in kinds:
            parts.append(
                f'<g class="edge {kind.value}"><path d="M{x:.1f},{y - 4:.1f}h26"/></g>'
                f'<text x="{x + 33:.1f}" y="{y:.1f}">{words}</text>'
            )
            x += 33 + len(words) * _SMALL_LETTER + 22
    return f'<g class="legend">{"".join(parts)}</g>' if parts else "", x


def _node_width(node: GraphNode) -> float:
    label, note = _width(_cut(node.label), _LETTER), _width(_cut(node.note), _SMALL_LETTER)
    return max(72.0, max(label, note) + 2 * _PADDING)


def _width(text: str, letter: float) -> float:
    """Estimates how wide a text is, in pixels. `letter`: width of most letters."""
    return sum(letter * _proportion(sign) for sign in text)


def _proportion(sign: str) -> float:
    if sign in "mwMW@%" or east_asian_width(sign) in "WF":
        return 1.8
    return 1.5 if sign.isupper() or not sign.isascii() else 1


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…"


def _text(text: str) -> str:
    return escape("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text))
