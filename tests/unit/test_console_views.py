"""The console's pages for well-formed, malformed and hostile objects."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrole_controller.api.pgrole import IgnoredField
from pgrole_controller.console import template_files
from pgrole_controller.console.drift_chart import HourCount, at_least, count_by_hour, draw_chart, read_counts
from pgrole_controller.console.drift_entries import read_history
from pgrole_controller.console.graph import Memberships
from pgrole_controller.console.object_fields import (
    LONGEST_YAML,
    keep_fields,
    read_number,
    read_text,
    read_time,
    write_yaml,
)
from pgrole_controller.console.object_state import ObjectState, judge
from pgrole_controller.console.overview import view_overview
from pgrole_controller.console.pages import ConsolePages
from pgrole_controller.console.remedies import find_role_remedy
from pgrole_controller.console.role_summary import summarize
from pgrole_controller.console.role_view import view_role
from pgrole_controller.console.roles_view import PAGE_ROWS, read_query, view_roles
from pgrole_controller.console.server_view import view_server
from pgrole_controller.console.snapshot import FetchedObject, Page, PageQuestion, Snapshot
from pgrole_controller.console.template_files import tell_distance
from pgrole_controller.core.access.membership_graph import NodeKind
from pgrole_controller.core.drift_record import HOURS
from pgrole_controller.core.errors import Reason, make_legible
from pgrole_controller.core.outcome import CONNECTED, RECONCILED, mention_privileges, of_read_back
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from tests.browser import snapshots
from tests.browser.snapshots import NOW, SCRIPT, ago, drift, make_role, make_server, make_snapshot

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(SCRIPT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = [
    "name",
    "serverRef",
    "login",
    "memberOf",
    "privileges",
    "parameters",
    "databaseParameters",
    "password",
    "drift",
    "validUntil",
    "connectionLimit",
    "conditions",
    "role",
    "server",
    "driftHistory",
    "lastDrift",
    "driftCount",
    "driftsPerHour",
    "databases",
    "detection",
    "allow",
    "connection",
    "time",
    "by",
    "fields",
    "details",
    "database",
    "schemas",
    "objects",
    "type",
    "status",
    "reason",
    "message",
    "metadata",
    "spec",
]
_SHAPED = st.recursive(
    _JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=8),
    max_leaves=25,
)


PAGES = ConsolePages()


def show(path: str, snapshot: Snapshot, **query: str) -> Page:
    return PAGES.render(PageQuestion(path, query, "a-csrf-token", NOW), snapshot)


class _Tags(HTMLParser):
    """Every tag of a document with its attributes, and the tags that are still open at its end."""

    _VOID = frozenset({"meta", "link", "img", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_inert(html: str) -> None:
    """Nothing in the document runs, styles, or leads to another host; every tag is closed."""
    html.encode()
    parsed = _Tags(html)
    assert parsed.open == []
    for tag, attributes in parsed.tags:
        assert tag not in {"style", "iframe", "object", "base"}
        if tag == "script":
            assert attributes["src"] in {"/static/theme.js", "/static/live.js"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name != "style"
            if name in {"href", "src", "action"}:
                assert value is not None
                assert value.startswith(("/", "#main"))
                assert not value.startswith("//")


def _paths(snapshot: Snapshot) -> list[str]:
    roles = [f"/roles/{key.namespace}/{key.name}" for key in snapshot.roles]
    return ["/", "/roles", "/servers", "/nowhere", *roles, *(f"/servers/{name}" for name in snapshot.servers)]


@pytest.mark.parametrize(
    "make",
    [
        snapshots.typical,
        snapshots.calm,
        snapshots.empty,
        snapshots.disconnected,
        snapshots.restricted,
        snapshots.without_rights,
        snapshots.hostile,
    ],
)
def test_every_page_of_every_snapshot_is_well_formed_and_inert(make: Any) -> None:
    snapshot = make()
    for path in _paths(snapshot):
        page = show(path, snapshot)
        assert page.status in (200, 404)
        check_inert(page.html)


@settings(max_examples=30)
@given(role=_SHAPED, server=_SHAPED)
def test_an_object_of_any_shape_is_shown_beside_the_others(role: Any, server: Any) -> None:
    key, good = make_role("shop", "good")
    bad = {"spec": role, "status": role} if not isinstance(role, dict) else {"spec": role, "status": server, **role}
    worse = server if isinstance(server, dict) else {"spec": server, "status": role}
    snapshot = replace(make_snapshot([(key, good), (Key("shop", "bad"), bad)]), servers={"worse": worse})
    for path in ("/", "/roles", "/roles/shop/bad", "/servers", "/servers/worse"):
        page = show(path, snapshot)
        assert page.status == 200
        check_inert(page.html)
    assert "/roles/shop/good" in show("/roles", snapshot).html


@settings(max_examples=40)
@given(query=st.dictionaries(st.sampled_from(["q", "namespace", "server", "state", "sort", "page"]), st.text()))
def test_any_query_is_answered(query: dict[str, str]) -> None:
    page = show("/roles", snapshots.calm(), **query)
    assert page.status == 200
    check_inert(page.html)


def test_a_name_that_is_markup_is_shown_as_text() -> None:
    key, found = make_role("shop", "app", "NotAllowed", SCRIPT, spec={"name": SCRIPT, "comment": SCRIPT})
    html = show("/roles/shop/app", make_snapshot([(key, found)])).html
    assert SCRIPT not in html
    assert "&lt;script&gt;globalThis.pwned=1&lt;/script&gt;" in html


def test_bidirectional_and_control_characters_are_made_visible() -> None:
    found = make_role("shop", "app", spec={"name": "\u202egnp\x1b"})
    html = show("/roles", make_snapshot([found])).html
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "\\u202egnp\\x1b" in html


@pytest.mark.parametrize("sign", ["\u200b", "\u200d", "\u00ad", "\u2060", "\ufeff", "\u3164", "\ufe0f", "\U000e0041"])
def test_two_names_never_look_the_same_because_of_a_character_that_is_not_shown(sign: str) -> None:
    html = show("/roles", make_snapshot([make_role("shop", "app", spec={"name": f"app{sign}"})])).html
    assert sign not in html
    assert f"app{sign.encode('unicode_escape').decode()}" in html


def test_a_fragment_is_the_main_element_of_the_page() -> None:
    question = PageQuestion("/", {}, "", NOW)
    fragment = PAGES.render(replace(question, fragment=True), snapshots.typical()).html
    assert fragment.lstrip().startswith("<main")
    assert fragment in PAGES.render(question, snapshots.typical()).html


def test_yaml_omits_managed_fields_and_keeps_kubectls_order() -> None:
    _, found = make_role("shop", "app")
    found["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    text = write_yaml(found)
    assert "managedFields" not in text
    assert re.findall(r"^\w+", text, re.MULTILINE) == ["apiVersion", "kind", "metadata", "spec", "status"]


def test_yaml_is_shown_as_it_is_and_what_cannot_be_seen_as_yaml_escapes_it() -> None:
    found = {"metadata": {"name": "x"}, "spec": {"reassignOwnedTo": "", "validUntil": '2027 <&>"', "comment": "é"}}
    for comment in ("é", "app\u200b\u202e\x85\n"):
        found["spec"]["comment"] = comment
        fetched = FetchedObject(json.dumps(found).encode())
        question = PageQuestion("/roles/shop/x/yaml", {}, "", NOW, fetched=fetched)
        _, text, _ = re.split("</?code>", PAGES.render(question, make_snapshot([])).html)
        assert yaml.safe_load(unescape(text)) == found
        assert make_legible(text.replace("\n", "")) == text.replace("\n", "")
        assert text.isascii() == (comment != "é")


@pytest.mark.parametrize(
    "content",
    [
        ["x" * 300] * 100_000,
        {f"key{n}": {"privileges": ["SELECT", "INSERT"]} for n in range(20_000)},
        {"text": "a b\n" * 300_000},
        {"text": "\u202e\x00" * 300_000},
        {"x" * 1_000_000: 1},
    ],
)
def test_yaml_of_a_large_object_is_cut_before_it_is_written(content: Any) -> None:
    text = write_yaml({"metadata": {"name": "x"}, "spec": content})
    assert len(text) < LONGEST_YAML + 100
    assert text.endswith("# cut: the object is longer\n")


def test_yaml_of_a_deep_object_is_cut() -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = {"a": [deep]}
    assert write_yaml({"spec": deep}).endswith("# cut: the object is longer\n")


def test_yaml_of_an_object_that_fits_is_the_object() -> None:
    found = {
        "metadata": {"name": "x"},
        "spec": {"comment": "é\u202e", "empty": {}, "none": None, "list": [1, 2.5, True]},
    }
    assert yaml.safe_load(write_yaml(found)) == found


def test_a_role_page_shows_every_field_that_can_drift() -> None:
    key, found = make_role("shop", "app")
    assert {one.name for one in view_role(key, found, []).fields} == set(get_args(IgnoredField))


def test_defaults_are_marked_although_the_api_server_writes_them_into_the_spec() -> None:
    written = {"login": False, "inherit": True, "createdb": True, "connectionLimit": -1, "memberOf": [{"role": "a"}]}
    key, found = make_role("shop", "app", spec=written)
    fields = view_role(key, found, []).fields
    assert [one.name for one in fields if not one.is_default] == ["createdb", "memberOf"]


@pytest.mark.parametrize("message", [RECONCILED.message, mention_privileges(RECONCILED.message)])
def test_a_message_that_only_repeats_that_a_role_is_as_declared_is_left_out(message: str) -> None:
    key, found = make_role("shop", "app", message=message)
    page = show("/roles/shop/app", make_snapshot([(key, found)]))
    assert page.html.count(message) == 1, "not only among the conditions"


def test_a_message_that_only_repeats_that_a_server_is_connected_is_left_out() -> None:
    page = show("/servers/main", make_snapshot([], {"main": make_server("main")}))
    assert page.html.count(CONNECTED.message) == 1, "not only among the conditions"


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_a_role_has_a_meaning_and_a_remedy(reason: Reason) -> None:
    remedy = find_role_remedy(reason)
    assert remedy.meaning
    assert remedy.action or reason is Reason.RECONCILED


@pytest.mark.parametrize("reason", [Reason.CONFLICT, Reason.ROLE_EXISTS, Reason.PROTECTED])
def test_no_remedy_asks_to_change_an_immutable_name(reason: Reason) -> None:
    assert "delete this object and create it with another spec.name" in find_role_remedy(reason).action.lower()


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("Reconciled", ObjectState.READY),
        ("NotAllowed", ObjectState.STALLED),
        ("Contested", ObjectState.STALLED),
        ("DriftReported", ObjectState.DRIFT),
        ("DatabaseError", ObjectState.RETRYING),
        ("Progressing", ObjectState.WORKING),
        ("Suspended", ObjectState.SUSPENDED),
    ],
)
def test_the_reason_of_a_role_determines_its_state(reason: str, state: ObjectState) -> None:
    assert summarize(*make_role("shop", "app", reason)).state is state


def test_a_role_whose_changed_spec_is_not_yet_processed_is_in_progress() -> None:
    _, found = make_role("shop", "app")
    found["metadata"]["generation"] = 2
    assert judge(found).state is ObjectState.WORKING
    assert judge({}).state is ObjectState.NEW


def test_an_edited_or_deleted_role_needs_attention_only_if_that_is_not_processed_for_five_minutes() -> None:
    roles = []
    for name, minutes in (("fresh", 4), ("forgotten", 6)):
        _, edited = make_role("shop", name)
        managers = [("Apply", "", 40), ("Update", "", minutes), ("Update", "status", 1)]
        edited["metadata"]["managedFields"] = [
            {"operation": operation, "subresource": part, "time": ago(minutes=back)}
            for operation, part, back in managers
        ]
        deleted = {**edited, "metadata": {**edited["metadata"], "deletionTimestamp": ago(minutes=minutes)}}
        for verb, found in (("edited", edited), ("deleted", deleted)):
            found["metadata"]["generation"] = 2
            roles.append((Key("shop", f"{name}-{verb}"), keep_fields(found)))
    overview = view_overview(make_snapshot(roles), [summarize(*each) for each in roles], NOW)
    assert [each.key.name for each in overview.attention] == ["forgotten-deleted", "forgotten-edited"]
    first, second = overview.attention
    assert first.message == "The object is being deleted."
    assert second.message.startswith("The spec changed.")
    assert first.since == second.since == NOW - timedelta(minutes=6)


def test_when_an_edited_role_changed_is_unknown_without_managers() -> None:
    _, found = make_role("shop", "app")
    found["metadata"]["generation"] = 2
    assert judge(keep_fields(found)).since is None


def test_the_overview_lists_roles_that_need_attention_worst_first() -> None:
    snapshot = snapshots.typical()
    overview = view_overview(snapshot, [summarize(*each) for each in snapshot.roles.items()], NOW)
    assert [each.name for each in overview.broken_servers] == ["warehouse"]
    assert [each.key.name for each in overview.attention] == ["billing-app", "orders-report", "legacy-batch"]


def test_a_role_that_waits_longer_than_five_minutes_needs_attention() -> None:
    roles = [
        make_role("shop", "short", "MembershipPending", since=ago(minutes=4)),
        make_role("shop", "long", "MembershipPending", since=ago(minutes=6)),
    ]
    overview = view_overview(make_snapshot(roles), [summarize(*each) for each in roles], NOW)
    assert [each.key.name for each in overview.attention] == ["long"]


def test_a_role_that_is_not_processed_for_five_minutes_needs_attention() -> None:
    roles = []
    for name, created in (("fresh", ago(minutes=4)), ("forgotten", ago(days=3))):
        key, found = make_role("shop", name)
        found["metadata"]["creationTimestamp"] = created
        del found["status"]
        roles.append((key, found))
    overview = view_overview(make_snapshot(roles), [summarize(*each) for each in roles], NOW)
    assert [each.key.name for each in overview.attention] == ["forgotten"]


@pytest.mark.parametrize(
    ("reason", "calm"),
    [("Reconciled", True), ("Progressing", True), ("Suspended", False), ("MembershipPending", False)],
)
def test_every_role_is_called_as_declared_only_if_each_one_is_or_soon_will_be(reason: str, calm: bool) -> None:
    roles = [make_role("shop", "orders-app"), make_role("shop", "other", reason, since=ago(minutes=1))]
    html = show("/", make_snapshot(roles)).html
    assert "Nothing needs attention." in html
    assert ("Every role is as declared" in html) is calm


def test_drifts_per_hour_come_from_servers_or_else_from_roles() -> None:
    counts = [{"hour": ago(hours=1, minutes=40), "corrected": 3, "reported": 1}, {"hour": "x", "corrected": True}]
    known = read_counts([{"status": {"driftsPerHour": counts}}], NOW)
    assert known is not None
    assert len(known) == HOURS
    assert (known[-2].corrected, known[-2].reported) == (3, 1)
    assert read_counts([{"status": {}}], NOW) is None
    history = read_history({"driftHistory": [drift(ago(minutes=1), "login"), drift(ago(hours=30), "login")]})
    assert sum(each.corrected for each in count_by_hour(history, NOW)) == 1


@pytest.mark.parametrize("entries", [1, 48])
def test_counts_of_any_size_are_drawn(entries: int) -> None:
    most = 2**63 - 1
    counted = [{"hour": NOW.isoformat(), "corrected": most, "reported": most}] * entries
    known = read_counts([{"status": {"driftsPerHour": counted}}] * 20, NOW)
    assert known is not None
    chart = draw_chart(known, "")
    assert chart.corrected + chart.reported == 2 * most * entries * 20
    assert all(bar.reported_y >= 0 for bar in chart.bars)


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 2), (2, 2), (3, 4), (4, 4), (5, 10), (11, 20), (21, 40), (41, 100), (101, 200)]
)
def test_the_scale_ends_at_a_round_number(highest: int, top: int) -> None:
    assert draw_chart([HourCount(NOW, highest, 0)], "").ticks[-1][1] == top


def test_bars_stay_within_the_chart() -> None:
    known = read_counts([{"status": {"driftsPerHour": [{"hour": ago(), "corrected": 2**62, "reported": 7}]}}], NOW)
    assert known is not None
    chart = draw_chart(known, "")
    assert all(bar.reported_y >= 0 and bar.corrected_y >= 0 for bar in chart.bars)


def test_a_field_that_differs_under_policy_report_is_marked() -> None:
    snapshot = snapshots.typical()
    key = Key("billing", "legacy-batch")
    view = view_role(key, snapshot.roles[key], [])
    fits = {row.name: row.fit for row in view.fields}
    assert (fits["login"], fits["memberOf"], fits["superuser"], fits["password"]) == (
        "drift",
        "drift",
        "ready",
        "unmanaged",
    )


def test_the_last_drift_is_not_listed_twice() -> None:
    entry = drift(ago(minutes=1), "login", by="alice", proof="Log")
    assert len(read_history({"lastDrift": entry, "driftHistory": [entry, drift(ago(hours=1), "login")]})) == 2


def test_roles_are_searched_filtered_sorted_and_paged() -> None:
    summaries = [summarize(*each) for each in snapshots.many(1000).roles.items()]
    page = view_roles(read_query({"page": "3", "sort": "name"}), summaries)
    assert (len(page.rows), page.first, page.last, page.pages) == (PAGE_ROWS, 201, 300, 10)
    assert page.rows[0].key.name == "service-00200"
    assert view_roles(read_query({"page": "99"}), summaries).query.page == 10
    assert view_roles(read_query({"q": "TEAM-03 00043"}), summaries).matching == 1
    found = view_roles(read_query({"namespace": "team-03", "state": "ready"}), summaries)
    assert 0 < found.matching == found.states[-1].count
    assert "page=" not in found.query.link(state="drift")


@pytest.mark.parametrize("search", ["app\u200bAdmin", r"app\u200badmin", r"APP\U200B"])
def test_a_name_is_found_by_its_characters_and_by_what_the_list_shows(search: str) -> None:
    roles = [summarize(*make_role("shop", name, spec={"name": name})) for name in ("app\u200badmin", "appadmin")]
    assert [row.role for row in view_roles(read_query({"q": search}), roles).rows] == ["app\u200badmin"]


def test_a_drift_in_a_roles_history_counts_before_the_server_counts_it() -> None:
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    assert at_least([HourCount(hour, 3, 0)], [HourCount(hour, 1, 2)]) == (HourCount(hour, 3, 2),)


def test_a_large_membership_graph_with_cycles_is_drawn_and_cut() -> None:
    roles = [make_role("shop", f"member-{number:03}", spec={"memberOf": [{"role": "group"}]}) for number in range(30)]
    roles += [
        make_role("shop", "group", spec={"memberOf": [{"role": "cycle"}, {"role": "group"}]}),
        make_role("shop", "cycle", spec={"memberOf": [{"role": "group"}]}),
    ]
    summaries = [summarize(*each) for each in roles]
    found = Memberships(summaries, "orders").around(summaries[30])
    graph = found.graph
    assert sum(node.focus for node in graph.nodes) == 1
    assert len(graph.nodes) < 25
    more = {node.id for node in graph.nodes if node.kind is NodeKind.MORE}
    assert more
    assert more <= {end for edge in graph.edges for end in (edge.tail, edge.head)}
    assert {end for edge in graph.edges for end in (edge.tail, edge.head)} <= {node.id for node in graph.nodes}
    assert found.svg.count("<a href=") == sum(bool(node.link) for node in graph.nodes)


def test_roles_of_another_server_are_not_in_the_graph() -> None:
    subject = summarize(*make_role("shop", "app", spec={"memberOf": [{"role": "readers"}]}))
    other = summarize(*make_role("shop", "readers", spec={"serverRef": {"name": "other"}}))
    graph = Memberships([subject, other], "orders").around(subject).graph
    assert [node.link for node in graph.nodes if not node.focus] == [""]


def test_a_viewer_who_may_not_list_pgservers_sees_only_server_names() -> None:
    snapshot = snapshots.restricted()
    html = show("/", snapshot).html
    assert "Hidden" in html
    assert "You may not list PgServers" in html
    assert show("/servers/orders", snapshot).status == 404


def test_a_viewer_is_not_told_that_a_namespace_is_forbidden_that_they_did_not_name() -> None:
    html = show("/roles/shop/orders-app", snapshots.restricted()).html
    assert "You may not" not in html
    assert "The console does not show you namespace shop." in html
    assert "sign in again and name the namespace" in html


@pytest.mark.parametrize("path", ["/", "/roles"])
def test_the_page_tells_a_viewer_without_roles_to_name_a_namespace_or_which_permissions_to_request(path: str) -> None:
    html = show(path, snapshots.without_rights()).html
    assert "sign in again and name it" in html
    assert "ask for permission to get, list and watch pgroles.pgrole.dev" in html


@pytest.mark.parametrize("path", ["/", "/roles"])
def test_a_page_says_if_the_viewer_may_list_more_namespaces_than_it_shows(path: str) -> None:
    places = tuple(f"team-{n}" for n in range(50))
    snapshot = replace(snapshots.restricted(), namespaces=places)
    assert "shows 50 namespaces, and" in show(path, replace(snapshot, cut=True)).html
    assert "permitted to list more" not in show(path, snapshot).html


def test_the_server_of_an_environment_variable_is_not_called_deleted() -> None:
    snapshot = replace(snapshots.typical(), servers={})
    assert "It may have been deleted" in show("/servers/orders", snapshot).html
    html = show("/servers/default", snapshot).html
    assert "deleted" not in html
    assert "The controller then uses PGROLE_DSN" in html
    assert "on 0 servers" not in show("/", snapshot).html


def test_a_page_shows_since_when_the_api_server_is_unreachable() -> None:
    html = show("/roles", snapshots.disconnected()).html
    assert "The API server does not answer." in html
    assert 'datetime="2026-11-22T14:37:00+00:00"' in html


def test_a_page_says_that_the_credentials_are_refused_and_not_that_there_is_nothing() -> None:
    html = show("/", replace(snapshots.empty(), accepted=False, reading=True)).html
    assert "The API server does not accept your credentials." in html
    assert "Create one" not in html
    assert "The page fills in" not in html


def test_no_page_says_that_there_is_nothing_while_nothing_was_read() -> None:
    for path in ("/", "/servers", "/roles", "/roles?q=app"):
        address, _, search = path.partition("?q=")
        html = show(address, replace(snapshots.empty(), reading=True), **({"q": search} if search else {})).html
        assert "read so far" in html
        for false in ("There is no", "No roles.", "that you may see", "No role matches."):
            assert false not in html


def test_a_page_names_commands_as_its_viewer_typed_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    template_files.environment.cache_clear()
    try:
        html = show("/roles/shop/app", make_snapshot([make_role("shop", "app")])).html
    finally:
        template_files.environment.cache_clear()
    assert "<code>kubectl pgrole access " in html
    assert "pgrole-controller access" not in html


@pytest.mark.parametrize(
    ("role", "server", "hidden", "arguments"),
    [
        ("app", "main", False, "--server main app"),
        ("-app", "main", False, "--server main -- -app"),
        ("my app", "a;b", False, "--server 'a;b' 'my app'"),
        ("app", "main", True, "app"),
    ],
)
def test_the_commands_of_a_role_page_name_its_server_if_the_viewer_may_read_it(
    role: str, server: str, hidden: bool, arguments: str
) -> None:
    spec = {"name": role, "serverRef": {"name": server}}
    roles = [make_role("shop", "app", spec=spec, status={"driftHistory": [drift(ago(days=1), "login")]})]
    html = unescape(show("/roles/shop/app", replace(make_snapshot(roles), servers_hidden=hidden)).html)
    for command in ("access", "history"):
        assert f" {command} {arguments}</code>" in html


def test_the_login_page_escapes_what_it_shows() -> None:
    html = PAGES.render_login('"><b>', SCRIPT, f'/"{SCRIPT}')
    check_inert(html)
    assert SCRIPT not in html
    assert '<input type="hidden" name="page" value="/&#34;' in html


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (timedelta(), "now"),
        (-timedelta(seconds=59), "59 s ago"),
        (-timedelta(minutes=61), "1 h ago"),
        (timedelta(days=17), "in 17 d"),
    ],
)
def test_distances_in_time_are_short(distance: timedelta, words: str) -> None:
    assert tell_distance(distance) == words


def test_values_of_the_wrong_type_count_as_absent() -> None:
    assert read_text({"a": {"b": 1}}, "a", "b") == ""
    assert read_number({"a": True}, "a") is None
    assert read_number({"a": 2**64}, "a") is None
    assert read_time({"a": "0001-01-01T00:00:00+14:00"}, "a") is None


def observe(
    message: str, reason: str = "DriftReported", passwords: bool | None = None, **status: Any
) -> dict[str, str]:
    """Returns what the role's page shows for each managed field."""
    spec = {"password": {"generate": {}}, "privileges": [{"database": "d"}], "drift": {"policy": "Report"}}
    key, found = make_role("shop", "app", reason, message, spec=spec, status=status)
    found["metadata"]["generation"] = status.get("generation", 1)
    return {row.name: row.observed for row in view_role(key, found, [], passwords).fields}


def test_differing_fields_come_from_the_current_message_and_not_from_the_history() -> None:
    history = [drift(ago(hours=1), "createdb", corrected=False)]
    message = of_read_back(Plan("app", reported=("login", "memberOf"))).message
    seen = observe(message, driftHistory=history)
    differing = {name for name, words in seen.items() if words.startswith("differs")}
    assert differing == {"login", "memberOf"}
    assert seen["createdb"] == "not reported as different"


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("DriftReported", ObjectState.DRIFT),
        ("Suspended", ObjectState.SUSPENDED),
        ("Progressing", ObjectState.WORKING),
        ("NotAllowed", ObjectState.STALLED),
        ("InvalidSpec", ObjectState.STALLED),
        ("Protected", ObjectState.STALLED),
        ("DatabaseError", ObjectState.RETRYING),
        ("PrivilegePending", ObjectState.RETRYING),
    ],
)
def test_the_reason_of_a_database_determines_the_state_of_its_privileges(reason: str, state: ObjectState) -> None:
    states = [{"database": "d", "ready": False, "reason": reason, "message": "why"}]
    (database,) = view_role(*make_role("shop", "app", status={"privileges": states}), []).databases
    assert database.state is state


def test_no_field_of_a_role_that_is_missing_or_was_replaced_is_confirmed() -> None:
    missing = observe(of_read_back(Plan("app", reported=("role",))).message)
    assert set(missing.values()) == {"not confirmed"}
    replaced = observe(of_read_back(Plan("app", reported=("role", "login"))).message)
    assert replaced.pop("login") == "differs, and is left as it is"
    assert set(replaced.values()) == {"not confirmed"}


def test_a_reported_field_has_the_value_that_was_observed() -> None:
    message = of_read_back(Plan("app", reported=("connectionLimit", "memberOf"))).message
    fields = [{"name": "connectionLimit", "declared": "5", "observed": "77"}, {"name": "memberOf"}, {"name": 7}, "x"]
    seen = observe(message, approval={"fields": fields})
    assert seen["connectionLimit"] == "differs, and is left as it is: 77"
    assert seen["memberOf"] == "differs, and is left as it is"


def test_no_field_is_marked_where_the_message_names_something_else() -> None:
    seen = observe(of_read_back(Plan("app", reported=("login", "a field of a later release"))).message)
    assert set(seen.values()) == {"not confirmed"}


def test_a_server_that_is_not_connected_has_no_sessions() -> None:
    def sessions(reason: str) -> Sequence[str]:
        *_, last = view_server("main", make_server("main", reason), [], NOW).connection
        return last.lines

    assert sessions("Reconciled") == ("home database", "1 database with managed privileges")
    assert sessions("ServerNotReady") == ("none in use",)


def test_names_in_details_of_privileges_are_not_fields() -> None:
    states = [{"database": "d", "ready": False, "reason": "DriftReported"}]
    seen = observe(
        f"{of_read_back(Plan('app', reported=('x',))).message[:-1]}login, SELECT on login", privileges=states
    )
    assert {name for name, words in seen.items() if words.startswith("differs")} == {"privileges"}


def test_fields_are_not_confirmed_for_an_unprocessed_spec_or_an_unreachable_server() -> None:
    outdated = observe(of_read_back(Plan("app", reported=("login",))).message, generation=2)
    away = observe("cannot connect", "ServerNotReady")
    assert {*outdated.values(), *away.values()} == {"not confirmed"}


@pytest.mark.parametrize(
    ("passwords", "words"),
    [
        (True, "as declared"),
        (False, "applied; the controller cannot notice changes on this server"),
        (None, "applied; the controller may not notice changes"),
    ],
)
def test_a_password_is_as_declared_only_where_the_controller_reads_verifiers(
    passwords: bool | None, words: str
) -> None:
    assert observe("the role matches the spec", "Reconciled", passwords)["password"] == words


def test_one_drift_and_one_role_are_announced_in_the_singular() -> None:
    snapshot = make_snapshot([make_role("shop", "app", status={"driftHistory": [drift(ago(hours=2), "login")]})])
    assert 'data-announcement="app: Ready. 1 drift"' in show("/roles/shop/app", snapshot).html
    assert 'data-announcement="1 role"' in show("/roles", snapshot).html
    searched = show("/roles", snapshot, q="app").html
    assert 'data-announcement="1 of 1 role"' in searched
    assert ">1 of 1 role<" in re.sub(r"\s*<", "<", searched)


def test_an_empty_list_of_roles_has_no_filter_form() -> None:
    html = show("/roles", snapshots.without_rights()).html
    assert "0 roles</p>" in html
    assert "<form class" not in html.partition("<main")[2]
    assert "<form class" in show("/roles", snapshots.typical()).html.partition("<main")[2]
