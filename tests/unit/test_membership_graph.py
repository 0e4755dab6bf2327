"""Membership graphs: complete, bounded, and harmless whatever names the roles have."""

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from pgrole_controller.core.access.graph_svg import render_svg
from pgrole_controller.core.access.membership_graph import (
    EdgeKind,
    GraphEdge,
    GraphNode,
    MembershipGraph,
    NodeKind,
    around_role,
    render_dot,
    towards_object,
)
from pgrole_controller.core.access.role_graph import AccessRole, GroupEdge, RoleGraph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    '<script>alert("x")</script>',
    'a"]; b -> c [label="',
    "\x1b[31mred\x07",
    "\\N\\n\\",
    "\udce9bad",
    "&lt;'",
    "]]>",
)


def some(edges: list[GroupEdge], names: dict[int, str] | None = None) -> RoleGraph:
    oids = sorted({oid for edge in edges for oid in (edge.member, edge.group)} | set(names or {}))
    return RoleGraph([AccessRole(oid, (names or {}).get(oid, f"r{oid}"), login=oid % 2 == 0) for oid in oids], edges)


def test_a_graph_shows_groups_and_members_of_a_role_and_the_kind_of_each_membership() -> None:
    graph = around_role(
        some(
            [
                GroupEdge(1, 2),
                GroupEdge(2, 3, inherit=False),
                GroupEdge(4, 2, inherit=False, set_role=False, admin=True),
            ]
        ),
        2,
    )
    assert {node.label for node in graph.nodes} == {"r1", "r2", "r3", "r4"}
    assert {(edge.tail, edge.head): edge.kind for edge in graph.edges} == {
        ("role-1", "role-2"): EdgeKind.INHERIT,
        ("role-2", "role-3"): EdgeKind.SET_ROLE,
        ("role-4", "role-2"): EdgeKind.ADMIN,
    }
    assert [node.label for node in graph.nodes if node.focus] == ["r2"]


def test_a_graph_shows_which_roles_reach_an_object() -> None:
    roles = some([GroupEdge(1, 2), GroupEdge(3, 2, inherit=False, set_role=False, admin=True)])
    graph = towards_object(roles, "app.orders", {2: ["SELECT"], 0: ["INSERT"]}, "table")
    assert {node.label for node in graph.nodes} == {"r1", "r2", "PUBLIC", "app.orders"}
    assert {edge.label for edge in graph.edges if edge.head == "object"} == {"SELECT", "INSERT"}


@pytest.mark.parametrize("most", [5, 60])
def test_a_graph_has_a_bounded_number_of_nodes_and_counts_the_others(most: int) -> None:
    star = some([GroupEdge(number, 1) for number in range(2, 5000)])
    for graph in (around_role(star, 1, most), towards_object(star, "t", {1: ["SELECT"]}, most=most)):
        assert len(graph.nodes) <= most + 2
        (more,) = [node for node in graph.nodes if node.kind is NodeKind.MORE]
        shown = sum(1 for node in graph.nodes if node.kind in (NodeKind.LOGIN, NodeKind.GROUP))
        assert int(more.label.strip("+ more").replace(",", "")) + shown == 4999


def test_no_name_becomes_markup_or_another_statement() -> None:
    names = dict(enumerate(HOSTILE, 2))
    graph = around_role(some([GroupEdge(oid, 1) for oid in names], names), 1)
    svg = render_svg(graph)
    root = ET.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg", "title", "desc", "style", "rect", "text", "g", "path",
    }  # fmt: skip
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    svg.encode()
    dot = render_dot(graph)
    dot.encode()
    assert "\x1b" not in svg + dot
    for line in dot.splitlines()[3:-1]:
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
        assert re.fullmatch(r'  "" (?:-> "" )?\[[a-z0-9=", ]+\];', outside), line


def test_the_svg_has_an_accessible_title_and_description() -> None:
    graph = around_role(some([GroupEdge(1, 2)]), 2)
    root = ET.fromstring(render_svg(graph))
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == "Memberships of r2"
    assert description is not None
    assert "1 member" in (description.text or "")
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]


def test_a_standalone_svg_has_colours_and_one_without_style_has_none() -> None:
    graph = around_role(some([GroupEdge(1, 2)]), 2)
    assert "prefers-color-scheme" in render_svg(graph)
    bare = render_svg(graph, style="")
    assert "<style" not in bare
    assert "#" not in re.sub(r"&#\d+;", "", bare)


def test_nodes_do_not_overlap_and_edges_lead_to_the_right() -> None:
    edges = [GroupEdge(number, number // 2) for number in range(2, 40)] + [
        GroupEdge(number, 1) for number in range(9, 20)
    ]
    root = ET.fromstring(render_svg(around_role(some(edges), 1)))
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for group in root.iter(f"{SVG}g")
        if "node" in group.attrib.get("class", "")
        for rect in group.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 39
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in combinations(boxes, 2):
        apart = x + width <= other_x or other_x + other_width <= x
        assert apart or y + height <= other_y or other_y + other_height <= y
    for path in root.iter(f"{SVG}path"):
        points = [float(number) for number in re.findall(r"(-?[\d.]+),", path.attrib["d"].partition("l")[0])]
        assert points == sorted(points)


def test_an_empty_graph_and_a_cycle_are_drawn() -> None:
    nodes = (GraphNode("a", "a", NodeKind.GROUP), GraphNode("b", "b", NodeKind.GROUP))
    cycle = (GraphEdge("a", "b", EdgeKind.INHERIT), GraphEdge("b", "a", EdgeKind.INHERIT))
    ET.fromstring(render_svg(MembershipGraph("cycle", "", nodes, cycle)))
    ET.fromstring(render_svg(MembershipGraph("empty", "", (), ())))
