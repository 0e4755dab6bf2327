"""kube/store: what is kept of objects, and how changes are announced."""

import json
import random
import tracemalloc
import zlib
from typing import Any

import pytest

from pgrole_controller import metrics
from pgrole_controller.core.request import Key
from pgrole_controller.kube.store import Store, StoreChange, is_older
from pgrole_controller.kube.stored_object import ParseCache, Stored, pack, pack_metadata


def made(name: str = "a", uid: str = "u1", version: str = "1", **spec: object) -> Stored:
    metadata = {"namespace": "shop", "name": name, "uid": uid, "resourceVersion": version}
    return pack({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": metadata, "spec": spec})


def role_name(obj: dict[str, Any]) -> list[str]:
    return [obj["spec"]["role"]] if "role" in obj["spec"] else []


KEY = Key("shop", "a")


def test_an_object_is_stored_compactly_without_fields_that_only_others_read() -> None:
    stored = pack(
        {
            "kind": "Widget",
            "metadata": {
                "name": "a",
                "uid": "u1",
                "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "käse"},
            },
        }
    )
    assert stored.key == Key("", "a")
    assert "managedFields" not in stored.object()["metadata"]
    assert "last-applied" not in json.dumps(stored.object())
    assert len(stored.body) < len(json.dumps(stored.object()))
    assert stored.object()["metadata"]["annotations"] == {"team": "käse"}


@pytest.mark.parametrize("kind", ["PgRole", "PgServer"])
def test_metadata_of_own_kinds_that_no_one_reads_is_not_kept(kind: str) -> None:
    """Each change of a PgRole with a megabyte of labels kept the event loop for 0.3 s."""
    metadata = {
        "name": "a",
        "uid": "u1",
        "resourceVersion": "7",
        "labels": {f"l{number}": "x" for number in range(50_000)},
        "ownerReferences": [{"uid": str(number)} for number in range(10_000)],
        "finalizers": [*(f"example.dev/{number}" for number in range(50_000)), "pgrole.dev/drop"],
    }
    stored = pack({"metadata": metadata}, api_version="pgrole.dev/v1alpha1", kind=kind)
    assert stored.object()["metadata"] == {
        "name": "a",
        "uid": "u1",
        "resourceVersion": "7",
        "finalizers": ["pgrole.dev/drop"],
    }


def test_labels_of_a_namespace_are_kept() -> None:
    metadata = {"name": "a", "uid": "u1", "resourceVersion": "7", "labels": {"team": "x"}}
    assert pack({"kind": "Namespace", "metadata": metadata}).object()["metadata"]["labels"] == {"team": "x"}


def compressed(obj: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(obj).encode())


def test_a_cached_object_is_not_parsed_again() -> None:
    parsed = ParseCache()
    body = compressed({"a": 1})
    assert parsed.get(body) == {"a": 1}
    assert parsed.get(body) is parsed.get(body)


def test_the_parse_cache_is_limited_in_bytes_and_keeps_the_objects_read_last() -> None:
    parsed = ParseCache(most=100, largest=60)
    first, second, third = (compressed({"a": letter * 30}) for letter in "xyz")  # 39 bytes each
    kept = parsed.get(first), parsed.get(second)
    assert parsed.get(first) is kept[0]
    parsed.get(third)
    assert parsed.get(first) is kept[0]
    assert parsed.get(second) is not kept[1]


def test_a_large_object_is_not_cached_even_if_it_compresses_well() -> None:
    parsed = ParseCache(most=1000, largest=60)
    body = compressed({"a": "x" * 60})
    assert len(body) < 60
    assert parsed.get(body) is not parsed.get(body)


def test_the_store_knows_versions_that_are_not_newer_than_the_stored_or_removed_one() -> None:
    store = Store()
    store.put(made(version="5"))

    def seen(uid: str, version: str) -> dict[str, Any]:
        return {"metadata": {"namespace": "shop", "name": "a", "uid": uid, "resourceVersion": version}}

    assert store.knows(seen("u1", "5"))
    assert store.knows(seen("u1", "4"))
    assert not store.knows(seen("u1", "6"))
    assert not store.knows(seen("u2", "6"))
    store.remove(KEY, "u1")
    assert store.knows(seen("u1", "6"))
    assert not store.knows(seen("u2", "6"))
    with pytest.raises(ValueError, match="without metadata"):
        store.knows({})


@pytest.mark.parametrize(
    "obj", [{}, {"metadata": None}, {"metadata": {"name": "a"}}, {"metadata": {"uid": "u", "name": "a"}}]
)
def test_an_object_without_required_metadata_is_rejected(obj: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without metadata"):
        pack(obj)


def test_versions_compare_as_integers_of_any_length() -> None:
    assert is_older("9", than="10")
    assert not is_older("10", than="9")
    assert not is_older("10", than="10")
    assert is_older("9" * 40, than="1" + "0" * 40)


def test_a_new_object_is_a_change_without_an_old_one() -> None:
    store = Store()
    new = made()
    assert store.put(new) == StoreChange(KEY, None, new)
    assert store.get(KEY) == new
    assert len(store) == 1


def test_the_same_version_or_an_older_one_of_the_same_object_is_no_change() -> None:
    store = Store()
    store.put(made(version="10"))
    assert store.put(made(version="10")) is None
    assert store.put(made(version="9", size=1)) is None
    assert store.get(KEY) == made(version="10")


def test_a_late_answer_to_a_write_does_not_restore_a_deleted_object() -> None:
    store = Store()
    store.put(made(version="10"))
    assert store.remove(KEY, "u1") == StoreChange(KEY, made(version="10"), None)
    assert store.put(made(version="11")) is None
    assert store.get(KEY) is None


def test_an_object_that_a_list_lacks_comes_back_with_the_watch_and_not_with_a_late_answer_to_a_write() -> None:
    store = Store()
    store.put(made(version="10"))
    store.replace([])
    assert store.put(made(version="11"), by=KEY) is None
    assert store.put(made(version="10")) == StoreChange(KEY, None, made(version="10"))
    assert store.put(made(version="11"), by=KEY) == StoreChange(KEY, made(version="10"), made(version="11"), by=KEY)


def test_a_late_answer_about_the_predecessor_of_a_recreated_object_is_ignored() -> None:
    store = Store()
    store.put(made(uid="u1", version="10"))
    store.put(made(uid="u2", version="12"))
    assert store.put(made(uid="u1", version="11")) is None
    found = store.get(KEY)
    assert found is not None
    assert found.uid == "u2"


def test_a_deletion_of_an_earlier_object_of_the_same_name_removes_nothing() -> None:
    store = Store()
    store.put(made(uid="u2", version="12"))
    assert store.remove(KEY, "u1") is None
    assert len(store) == 1


def test_a_complete_list_announces_new_changed_deleted_and_recreated_objects() -> None:
    store = Store()
    for name in ("same", "changed", "gone", "again"):
        store.put(made(name, uid=name, version="5"))
    changes = store.replace(
        [
            made("same", uid="same", version="5"),
            made("changed", uid="changed", version="6"),
            made("again", uid="again2", version="7"),
            made("new", uid="new", version="8"),
        ]
    )
    said = {c.key.name: (c.old and c.old.uid, c.new and c.new.uid) for c in changes}
    assert said == {
        "gone": ("gone", None),
        "changed": ("changed", "changed"),
        "again": ("again", "again2"),
        "new": (None, "new"),
    }


def test_a_list_replaces_stored_objects_even_by_older_versions() -> None:
    store = Store()
    store.put(made(version="1000"))
    assert len(store.replace([made(version="7")])) == 1
    assert store.get(KEY) == made(version="7")


def test_the_index_follows_every_change() -> None:
    store = Store(index=role_name)
    store.put(made("a", uid="a", version="1", role="app"))
    store.put(made("b", uid="b", version="2", role="app"))
    assert store.by_index("app") == {Key("shop", "a"), Key("shop", "b")}
    store.put(made("a", uid="a", version="3", role="web"))
    assert store.by_index("app") == {Key("shop", "b")}
    assert store.by_index("web") == {Key("shop", "a")}
    store.remove(Key("shop", "b"), "b")
    assert store.by_index("app") == set()
    store.replace([made("c", uid="c", version="4", role="web")])
    assert store.by_index("web") == {Key("shop", "c")}


def test_a_list_item_without_kind_gets_that_of_its_list() -> None:
    item = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}}
    assert pack(item, api_version="v1", kind="Secret").object()["kind"] == "Secret"


@pytest.mark.parametrize("count", [3, 30])
def test_the_oldest_of_an_index_follow_every_change(count: int) -> None:
    def made_at(name: str, second: int, uid: str = "", version: int = 1) -> Stored:
        at = f"2027-01-01T00:00:{second:02}Z"
        about = {"namespace": "shop", "name": name, "uid": uid or name, "resourceVersion": str(version)}
        return pack({"metadata": about | {"creationTimestamp": at}, "spec": {"role": "app"}})

    def names() -> list[str]:
        return [f"{one.key.name} {one.resource_version}" for one in store.oldest("app", 2)]

    store = Store(index=role_name)
    for number in range(count):
        store.put(made_at(f"o{number}", number + 10))
    assert names() == ["o0 1", "o1 1"]
    store.put(made_at("o1", 11, version=2))
    assert names() == ["o0 1", "o1 2"]
    store.put(made_at("older", 9))
    assert names() == ["older 1", "o0 1"]
    store.remove(Key("shop", "older"), "older")
    store.put(made_at("o0", 59, uid="again", version=3))
    assert names() == ["o1 2", "o2 1"]
    store.put(made("o1", uid="o1", version="4", role="other"))
    assert names()[0] == "o2 1"


class TestListeners:
    """Listeners are notified of every write to a store, whoever writes."""

    def test_every_change_is_announced_once_whoever_makes_it(self) -> None:
        store, heard = Store(), list[StoreChange]()
        store.subscribe(heard.append)
        store.put(made(version="1"))
        store.put(made(version="1"))
        store.put(made(version="2"), by=KEY)
        store.remove(KEY, "u1")
        store.remove(KEY, "u1")
        assert heard == [
            StoreChange(KEY, None, made(version="1")),
            StoreChange(KEY, made(version="1"), made(version="2"), by=KEY),
            StoreChange(KEY, made(version="2"), None),
        ]

    def test_a_listener_that_subscribes_twice_is_notified_once(self) -> None:
        store, heard = Store(), list[StoreChange]()
        for _ in range(2):
            store.subscribe(heard.append)
        store.put(made())
        assert len(heard) == 1

    def test_a_list_is_announced_once_it_is_stored_with_deletions_first(self) -> None:
        store = Store()
        heard: list[tuple[str, bool, set[str]]] = []
        store.put(made("gone", uid="gone"))
        store.subscribe(
            lambda change: heard.append((change.key.name, change.new is None, {key.name for key, _ in store.items()}))
        )
        store.replace([made("new", uid="new"), made("newer", uid="newer")])
        both = {"new", "newer"}
        assert heard == [("gone", True, both), ("new", False, both), ("newer", False, both)]

    def test_an_object_that_is_written_while_a_list_is_stored_is_indexed_by_what_is_stored(self) -> None:
        store = Store(index=role_name)
        store.put(made("a", uid="a", version="1", role="app"))
        store.put(made("b", uid="b", version="2", role="app"))
        steps = store.replacing([])
        next(steps)
        store.put(made("b", uid="b", version="3", role="web"))
        list(steps)
        assert (len(store), store.by_index("app"), store.by_index("web")) == (0, set(), set())

    def test_a_failing_listener_affects_neither_other_listeners_nor_the_store(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, heard = Store(), list[StoreChange]()
        before = metrics.INTERNAL_ERRORS.labels("object")._value.get()

        def fail(_: StoreChange) -> None:
            raise RuntimeError("hunter2")

        store.subscribe(fail)
        store.subscribe(heard.append)
        store.replace([made("a", uid="a"), made("b", uid="b")])
        assert [change.key.name for change in heard] == ["a", "b"]
        assert metrics.INTERNAL_ERRORS.labels("object")._value.get() == before + 2
        assert {vars(record)["object"] for record in caplog.records} == {"shop/a", "shop/b"}
        assert "hunter2" not in str([vars(record) for record in caplog.records])

    def test_an_object_that_cannot_be_indexed_is_stored_and_announced(self) -> None:
        def index(obj: dict[str, Any]) -> list[str]:
            return [obj["spec"]["role"]]

        store, heard = Store(index), list[StoreChange]()
        store.subscribe(heard.append)
        store.replace([made("well", uid="w", role="app"), made("poisoned", uid="p")])
        assert store.by_index("app") == {Key("shop", "well")}
        assert store.get(Key("shop", "poisoned")) is not None
        assert len(heard) == 2
        store.put(made("poisoned", uid="p", version="2", role="app"))
        assert store.by_index("app") == {Key("shop", "well"), Key("shop", "poisoned")}


def metadata(name: str = "a", **more: object) -> dict[str, Any]:
    return {
        "namespace": "shop",
        "name": name,
        "uid": f"00000000-0000-4000-8000-{name:>012}",
        "resourceVersion": "7",
        **more,
    }


def test_only_metadata_that_shows_ownership_or_deletion_is_kept() -> None:
    reference = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "app", "uid": "u"}
    given = metadata(
        labels={"team": "shop"},
        annotations={"pgrole.dev/hash": "h", "team": "shop", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        managedFields=[{"manager": "kubectl"}],
        ownerReferences=[reference],
        deletionTimestamp="2026-01-01T00:00:00Z",
        deletionGracePeriodSeconds=0,
    )
    stored = pack_metadata({"kind": "Secret", "metadata": given, "data": {"k": "dg=="}, "stringData": {"k": "v"}})
    assert (stored.key, stored.resource_version) == (KEY, "7")
    assert stored.object() == {
        "metadata": {
            "annotations": {"pgrole.dev/hash": "h"},
            "ownerReferences": [reference],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }
    }


@pytest.mark.parametrize("obj", [{}, {"metadata": None}, {"metadata": {"name": "a"}}])
def test_incomplete_metadata_is_rejected(obj: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without metadata"):
        pack_metadata(obj)


def test_large_annotations_and_owner_references_of_a_secret_are_not_kept() -> None:
    noise = random.Random(1).randbytes(128_000).hex()
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": noise[at : at + 60], "uid": "u"} for at in range(5_000)]
    notes = {"pgrole.dev/hash": noise, "pgrole.dev/more": noise, "team": noise}
    given = metadata(annotations=notes, ownerReferences=owners)
    assert len(pack_metadata({"metadata": given}).body) < 2_048
    del notes["pgrole.dev/hash"]
    assert pack_metadata({"metadata": given}).object() == {"metadata": {}}


@pytest.mark.slow
def test_ten_thousand_secrets_of_others_take_less_than_six_mebibytes() -> None:
    store = Store()
    tracemalloc.start()
    try:
        for number in range(10_000):
            text = json.dumps({"metadata": metadata(f"s{number}", labels={"team": "shop"}), "data": {"k": "x" * 1000}})
            store.put(pack_metadata(json.loads(text)))
        assert tracemalloc.get_traced_memory()[0] < 6 * 2**20
    finally:
        tracemalloc.stop()
    assert len(store) == 10_000
