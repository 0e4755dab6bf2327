"""Which fields of an object the console keeps, and how it reports those it left out."""

import json
import secrets
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgrole_controller.console import viewed_objects
from pgrole_controller.console.object_fields import BRIEF, LARGEST, keep_fields
from pgrole_controller.console.object_state import ObjectState
from pgrole_controller.console.pages import ConsolePages
from pgrole_controller.console.role_summary import summarize
from pgrole_controller.console.role_view import view_role
from pgrole_controller.console.snapshot import FetchedObject, PageQuestion, Snapshot
from pgrole_controller.console.viewed_objects import SharedObjects, ViewedStore, ViewerRoom
from pgrole_controller.console.viewer import Connect, Viewer
from pgrole_controller.core.request import Key
from tests.browser.snapshots import make_role, make_server, store_roles

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def sized(obj: dict[str, Any]) -> int:
    return len(json.dumps(obj))


def make_object(number: int, size: int, *, inside: str = "metadata") -> dict[str, Any]:
    """An object as an API server sends it, with `size` bytes that do not compress."""
    _, found = make_role("shop", f"app-{number}")
    found["metadata"] |= {"uid": f"u{number}", "resourceVersion": "1"}
    text = secrets.token_hex(size // 2)
    if inside == "metadata":
        found["metadata"] |= {"annotations": {"note": text}, "labels": {"team": "x"}, "managedFields": [{"f": text}]}
    else:
        found["spec"] |= {"privileges": [{"database": "d", "unmanaged": [text]}]}
    return found


def test_only_fields_that_pages_show_are_kept() -> None:
    found = make_object(1, 256 * 1024)
    kept = keep_fields(found)
    assert kept["spec"] == found["spec"]
    assert kept["status"] == found["status"]
    assert "leftOut" not in kept
    assert not {"annotations", "labels", "managedFields"} & kept["metadata"].keys()
    assert sized(kept) < 4096


def test_the_largest_fields_of_a_long_object_are_left_out_and_named() -> None:
    kept = keep_fields(make_object(1, 2 * LARGEST, inside="spec"))
    assert kept["leftOut"] == ["spec.privileges"]
    assert kept["spec"]["name"] == "app_1"
    assert summarize(Key("shop", "app-1"), kept).state is ObjectState.READY


@pytest.mark.parametrize("value", ["x", None, 3, [], {}, ["x" * 9], {"metadata": 3}])
@pytest.mark.parametrize("most", [BRIEF, LARGEST])
def test_objects_of_any_shape_are_kept(value: Any, most: int) -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": "NotAllowed", "message": "m" * 90_000}, value]
    reasons = []
    for found in (
        {"metadata": {"name": "a"}, "spec": value, "status": value},
        {"metadata": {"name": "a", "creationTimestamp": value}, "status": {"conditions": value, "x": "y" * LARGEST}},
        {"metadata": {"name": "a"}, "status": {"conditions": conditions, "\ud800": "\ud800" * LARGEST}},
    ):
        kept = keep_fields(found, most)
        assert sized(kept) < 2 * most + 1024
        reasons.append(summarize(Key("shop", "a"), kept).reason)
    assert reasons[-1] == "NotAllowed"


def test_a_viewer_with_many_long_objects_stays_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_objects, "MOST_OF_VIEWER", 200_000)
    room, shared = ViewerRoom(), SharedObjects()
    store = ViewedStore(shared, room, lambda: None, lambda: None)
    listed = [store.share(store.pack(make_object(n, 20_000, inside="spec"), "v1", "PgRole")) for n in range(100)]
    store.replace(listed)
    store.answered.set()
    held = sum(len(one.body) for one in listed)
    assert held == room.used == shared.size
    assert held < 200_000 + 100 * BRIEF
    brief = [one for one in listed if "leftOut" in one.parse()]
    assert 80 < len(brief) < 95
    assert {summarize(one.key, one.parse()).state for one in brief} == {ObjectState.READY}
    for one in listed:
        store.remove(one.key, one.uid)
    assert room.used == 0


async def test_a_watch_that_ends_late_takes_no_room_from_its_viewer() -> None:
    """It fills the store that it was given before the viewer's login was renewed."""
    viewer = Viewer("ann", cast("Connect", None), (), SharedObjects())
    late = viewer._store()
    viewer._forget()
    late.share(late.pack(make_object(1, 20_000), "v1", "PgRole"))
    assert late.seen()
    assert viewer._room.used == 0


def test_all_viewers_together_stay_within_the_process_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_objects, "MOST_IN_ALL", 100_000)
    shared = SharedObjects()
    stores = [ViewedStore(shared, ViewerRoom(), lambda: None, lambda: None) for _ in range(10)]
    for viewer, store in enumerate(stores):
        for number in range(10):
            store.share(store.pack(make_object(100 * viewer + number, 20_000, inside="spec"), "v1", "PgRole"))
    assert shared.size < 100_000 + 100 * BRIEF
    del store, stores
    assert shared.size == 0


def test_an_object_that_is_shared_again_is_not_counted_again() -> None:
    room = ViewerRoom()
    store = ViewedStore(SharedObjects(), room, lambda: None, lambda: None)
    one = store.share(store.pack(make_object(1, 20_000, inside="spec"), "v1", "PgRole"))
    for _ in range(5):
        assert store.share(one) is one
    assert room.used == len(one.body)


def test_a_role_page_claims_nothing_about_omitted_fields() -> None:
    key, found = make_role("shop", "app", spec={"privileges": [{"database": "d", "unmanaged": ["x" * 2 * LARGEST]}]})
    kept = keep_fields(found)
    rows = {row.name: row for row in view_role(key, kept, []).fields}
    assert rows["privileges"].declared == ("left out here: too long",)
    html = ConsolePages().render(PageQuestion("/roles/shop/app", {}, "", NOW), _with({key: kept})).html
    assert "spec.privileges" in html
    assert "Privileges are not managed" not in html
    for path in ("/", "/roles"):
        assert "1 role is too long" in ConsolePages().render(PageQuestion(path, {}, "", NOW), _with({key: kept})).html


def test_a_role_page_claims_nothing_about_omitted_states_of_databases() -> None:
    states = [{"database": f"d{n}", "ready": True, "message": "m" * 2048} for n in range(32)]
    spec = {"privileges": [{"database": f"d{n}"} for n in range(32)]}
    key, found = make_role("shop", "app", spec=spec, status={"privileges": states})
    html = ConsolePages().render(PageQuestion("/roles/shop/app", {}, "", NOW), _with({key: keep_fields(found)})).html
    assert html.count("Left out here") == 32
    assert "Not processed" not in html


def test_a_server_page_claims_nothing_about_omitted_databases_and_an_omitted_connection() -> None:
    databases = [{"name": f"{n:063}", "ready": n % 2 > 0, "message": "not connected " * 10} for n in range(200)]
    found = make_server("orders", databases=databases)
    found["spec"]["connection"]["hosts"] = ["x" * 2 * LARGEST]
    kept = keep_fields(found)
    assert kept["leftOut"] == ["spec.connection", "status.databases"]
    html = ConsolePages().render(PageQuestion("/servers/orders", {}, "", NOW), _with({}, {"orders": kept})).html
    assert "Left out here: the object is too long." in html
    for claim in ("no PgRole declares any", "home database", "verify-full", "5432"):
        assert claim not in html


def test_a_server_page_claims_nothing_about_an_omitted_policy() -> None:
    found = make_server("orders")
    found["spec"]["allow"]["roleNames"] = ["x" * 2 * LARGEST]
    html = (
        ConsolePages()
        .render(PageQuestion("/servers/orders", {}, "", NOW), _with({}, {"orders": keep_fields(found)}))
        .html
    )
    assert "left out here: the object is too long" in html
    assert "Superuser parameters" not in html


def _with(roles: dict[Key, Any], servers: dict[str, Any] | None = None) -> Snapshot:
    return Snapshot(store_roles(roles.items()), servers or {}, False, None, True, NOW, "alice")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/roles/shop/app/yaml", "/apis/pgrole.dev/v1alpha1/namespaces/shop/pgroles/app"),
        ("/servers/orders/yaml", "/apis/pgrole.dev/v1alpha1/pgservers/orders"),
        ("/roles/../app/yaml", None),
        ("/roles/shop/%2e%2e/yaml", None),
        ("/roles/shop/a?b/yaml", None),
        ("/roles/shop/app/status/yaml", None),
        ("/roles/shop/app", None),
    ],
)
def test_only_valid_paths_of_objects_are_fetched(path: str, asked: str | None) -> None:
    assert ConsolePages().find_object(path) == asked


def test_the_yaml_page_shows_the_fetched_object_or_the_problem() -> None:
    def show(fetched: FetchedObject | None) -> tuple[int, str]:
        page = ConsolePages().render(PageQuestion("/roles/shop/app/yaml", {}, "", NOW, fetched=fetched), _with({}))
        return page.status, page.html

    answer = json.dumps(make_object(1, 100)).encode()
    status, html = show(FetchedObject(answer))
    assert (status, "annotations:" in html) == (200, True)
    for fetched, problem in (
        (FetchedObject(None, "You may not"), "You may not"),
        (FetchedObject(b"<html>"), "not an object"),
        (FetchedObject(b"[" * 100_000), "not an object"),
        (FetchedObject(b"[" * 5_000 + b"]" * 5_000), "not an object"),
        (None, "No object can have this name"),
    ):
        status, html = show(fetched)
        assert (status, problem in html) == (404, True)
