"""kube/server_side_apply, resource, events, contexts: paths, lines, statuses and names. No I/O."""

import json
import logging
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.kube.answers import LineSplitter, LineTooLong, read_status
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NotConfigured, WrongKubeconfig
from pgrole_controller.kube.events import cut, micro_time, name_event
from pgrole_controller.kube.resource import NAMESPACES, PGROLES
from pgrole_controller.kube.server_side_apply import unchanged
from tests.fake_apiserver import WIDGETS, FakeApiServer, make_widget


def test_paths_depend_on_the_api_group_and_every_part_is_quoted() -> None:
    assert NAMESPACES.path(None, "kube-system") == "/api/v1/namespaces/kube-system"
    assert PGROLES.path() == "/apis/pgrole.dev/v1alpha1/pgroles"
    assert PGROLES.path("shop", "a", "status") == "/apis/pgrole.dev/v1alpha1/namespaces/shop/pgroles/a/status"
    assert PGROLES.path("shop", "../x?y") == "/apis/pgrole.dev/v1alpha1/namespaces/shop/pgroles/..%2Fx%3Fy"


@given(st.lists(st.binary(min_size=1).filter(lambda b: b.strip() and b"\n" not in b)), st.data())
def test_lines_do_not_depend_on_how_the_bytes_are_chunked(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


def test_a_last_line_without_a_newline_is_never_returned() -> None:
    assert LineSplitter().feed(b'{"a":1}\n\n{"b"') == [b'{"a":1}']


def test_a_line_beyond_the_limit_is_refused_before_it_is_complete() -> None:
    splitter = LineSplitter(limit=10)
    splitter.feed(b"12345\n6789")
    with pytest.raises(LineTooLong, match="10 bytes"):
        splitter.feed(b"1234567")


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (None, {}, False),
        ({"a": 1, "b": None}, {"a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"role": {"oid": 7}}, {"role": {"oid": 8}}, False),
    ],
)
def test_a_status_is_unchanged_when_it_says_the_same(
    old: dict[str, Any] | None, new: dict[str, Any], same: bool
) -> None:
    assert unchanged(old, new) is same


def test_conditions_compare_by_type_and_without_the_time_of_their_transition() -> None:
    ready = {"type": "Ready", "status": "True", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    stalled = {"type": "Stalled", "status": "False"}
    later = ready | {"lastTransitionTime": "2026-02-02T00:00:00Z"}
    assert unchanged({"conditions": [ready, stalled]}, {"conditions": [stalled, later]})
    assert not unchanged({"conditions": [ready]}, {"conditions": [ready | {"message": "y"}]})


@given(st.text(), st.integers(3, 40))
def test_a_note_is_cut_by_bytes_and_stays_valid_text(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short.encode()) <= limit
    if len(text.encode()) <= limit:
        assert short == text


def test_micro_time_has_exactly_six_digits_and_is_utc() -> None:
    east = timezone(timedelta(hours=2))
    assert micro_time(datetime(2026, 1, 1, 2, 0, 0, 0, tzinfo=east)) == "2026-01-01T00:00:00.000000Z"
    assert micro_time(datetime(2026, 1, 1, 0, 0, 0, 120, tzinfo=UTC)) == "2026-01-01T00:00:00.000120Z"


def test_the_retry_delay_is_read_from_the_details_of_a_status() -> None:
    error = read_status({"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 3}})
    assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 3.0)


@pytest.mark.parametrize(
    ("demanded", "seconds"),
    [(10**400, 300.0), (86_400, 300.0), (float("inf"), 300.0), (float("nan"), None), (-1, None), ("9" * 400, 300.0)],
    ids=["400 digits", "a day", "infinity", "NaN", "negative", "text"],
)
def test_a_retry_delay_is_bounded_whatever_an_answer_demands(demanded: object, seconds: float | None) -> None:
    error = read_status({"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": demanded}})
    assert error.retry_after == seconds


async def test_without_any_configuration_the_error_names_the_choices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotConfigured, match=r"--kubeconfig.*KUBECONFIG.*service account.*~/.kube/config"):
        async with Client.connect():
            pass


async def test_a_missing_or_invalid_kubeconfig_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="missing does not exist"):
        async with Client.connect(str(tmp_path / "missing")):
            pass
    bad = tmp_path / "bad"
    for text in ("", "a: [", "current-context: x", "[1, 2]"):
        bad.write_text(text)
        with pytest.raises(NotConfigured, match="bad is not usable"):
            async with Client.connect(str(bad)):
                pass


async def test_a_context_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("contexts: [{name: eu, context: {cluster: c}}, {name: us, context: {cluster: c}}]")
    with pytest.raises(NotConfigured, match=r'^--context: kubeconfig .* has no context "nope"; it has: eu, us$'):
        async with Client.connect(str(config), context="nope"):
            pass
    config.write_text("a: [")
    with pytest.raises(NotConfigured, match=r"config is not usable: it is not YAML$"):
        async with Client.connect(str(config)):
            pass


async def test_no_body_is_logged_even_at_level_debug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeApiServer()
    caplog.set_level(logging.DEBUG)
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        made = await make_widget(client, "shop", "one", password="hunter2")
        assert b"hunter2" in await client.request("GET", WIDGETS.path("shop", "one"))
    assert made["spec"]["password"] == "hunter2"
    assert caplog.text
    assert "hunter2" not in caplog.text


@given(
    name=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,70}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}", fullmatch=True)
    | st.integers(1, 253).map(lambda size: "a" * size)
    | st.integers(225, 251).map(lambda size: "a" * size + "-" * (252 - size) + "a"),
)
def test_an_event_has_a_valid_name_whatever_the_name_of_its_object(name: str) -> None:
    made = name_event(name[:253].rstrip("-."), 1_800_000_000_123_456_789)
    assert len(made) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)


def write_kubeconfig(path: Path, *, cluster: dict[str, Any] | None = None, user: Any = None, **parts: Any) -> str:
    config = {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"} | (cluster or {})}],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
    }
    path.write_text(json.dumps(config | parts))
    return str(path)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"clusters": []}, "name c in "),
        ({"clusters": "c"}, ""),
        ({"clusters": [{"name": "c"}]}, "Expected key cluster"),
        ({"users": []}, ""),
        ({"users": [{"name": "u", "user": "t"}]}, ""),
        ({"contexts": [{"name": "prod", "context": {"user": "u"}}]}, "Expected key cluster"),
        ({"user": {"token": None}}, "Expected key token"),
        ({"user": {"client-certificate-data": "a"}}, "Error"),
        ({"cluster": {"server": 5}}, ""),
        ({"cluster": {"server": "127.0.0.1"}}, "the address of the API server is not a URL"),
        ({"cluster": {"proxy-url": "socks"}}, "the address of the proxy is not a URL"),
        ({"cluster": {"certificate-authority-data": "!!"}}, "its certificates are not usable: "),
        ({"cluster": {"certificate-authority-data": "bm9uZQ=="}}, "its certificates are not usable: "),
        ({"user": {"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="}}, "its certificates are "),
        ({"user": {"exec": {"command": "/bin/false"}}, "clusters": []}, "name c in "),
    ],
)
async def test_what_the_text_of_a_kubeconfig_decides_is_misuse(
    tmp_path: Path, parts: dict[str, Any], words: str
) -> None:
    config = write_kubeconfig(tmp_path / "config", **parts)
    for connecting in (Client.connect(config), Client.connect(config, context="prod")):
        with pytest.raises(WrongKubeconfig) as caught:
            await connecting.__aenter__()
        assert str(caught.value).startswith(f"kubeconfig {config} is not usable: ")
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"user": {"exec": {"command": "/bin/false", "apiVersion": "v1"}}}, "exec: process returned 1"),
        ({"user": {"exec": {"command": "/nowhere/at/all", "apiVersion": "v1"}}}, "No such file"),
        ({"user": {"tokenFile": "/nowhere/at/all"}}, "No such file"),
        ({"cluster": {"certificate-authority": "/nowhere/at/all"}}, "/nowhere/at/all"),
        ({"user": {"client-certificate": "/nowhere/at/all"}}, "/nowhere/at/all"),
        ({"cluster": {"certificate-authority": "/dev/../proc/version"}}, "the certificates in "),
    ],
)
async def test_what_may_pass_without_another_kubeconfig_is_a_failure(
    tmp_path: Path, parts: dict[str, Any], words: str
) -> None:
    config = write_kubeconfig(tmp_path / "config", **parts)
    with pytest.raises(NotConfigured, match=words) as caught:
        await Client.connect(config).__aenter__()
    assert type(caught.value) is NotConfigured
    assert config in str(caught.value)
