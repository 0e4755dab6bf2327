"""JSON of any depth: what an API server without validation may send."""

import json
from typing import Any

import pytest

from pgrole_controller.core.request import Key
from pgrole_controller.kube import unvalidated
from pgrole_controller.kube.answers import read_status
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack_metadata
from pgrole_controller.kube.unvalidated import DEEPEST, limit_depth, read_json


def nested(levels: int) -> bytes:
    """Maps in lists, with brackets in strings beside them."""
    return b'{"a": "x]y\\"[", "deep": ' + b'[{"c":' * levels + b"1" + b"}]" * levels + b', "after": "]"}'


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict | list) and value:
        value = (value.get("deep") or value.get("c")) if isinstance(value, dict) else value[0]
        depth += 1
    return depth


@pytest.mark.parametrize("levels", [1, 31, 32, 33, 400, 100_000])
def test_values_nested_too_deeply_are_cut_and_the_rest_is_kept(levels: int) -> None:
    found = limit_depth(read_json(nested(levels)))
    assert (found["a"], found["after"]) == ('x]y"[', "]")
    assert depth_of(found) <= DEEPEST
    if 2 * levels < DEEPEST:
        assert found == json.loads(nested(levels))


def test_ordinary_values_are_not_copied() -> None:
    ordinary = read_json(nested(20))
    assert limit_depth(ordinary) is ordinary


def test_text_that_is_not_json_is_refused_whatever_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (b"{", b"[" * 100_000, nested(100_000)[:-1], b"]" * 100_000):
        with pytest.raises(ValueError, match=r".+"):
            read_json(text)
    monkeypatch.setattr(unvalidated, "LONGEST_SEARCHED", 1000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(nested(100_000))


@pytest.mark.parametrize("levels", [400, 100_000])
def test_an_object_with_deep_values_is_stored_and_read_like_any_other(levels: int) -> None:
    text = b'{"metadata": {"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "1"}, "spec": %s}'
    store = Store()
    store.put(store.pack(read_json(text % nested(levels)), "example.dev/v1", "Widget"))
    stored = store.get(Key("shop", "a"))
    assert stored is not None
    assert stored.parse()["spec"]["after"] == "]"
    assert depth_of(stored.object()["spec"]) <= DEEPEST


def test_deep_metadata_of_a_secret_is_cut() -> None:
    owners = json.loads(b"[" * 900 + b"]" * 900)
    metadata = {"name": "a", "uid": "u", "resourceVersion": "1", "annotations": {"pgrole.dev/hash": owners}}
    assert pack_metadata({"metadata": {**metadata, "ownerReferences": owners}}).key == Key("", "a")


def test_a_status_with_deep_values_becomes_an_error_with_a_text() -> None:
    error = read_status({"message": json.loads(b"[" * 900 + b"]" * 900), "code": 500})
    assert error.status == 500
