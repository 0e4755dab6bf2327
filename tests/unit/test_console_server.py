"""The console without a network: arguments, hosts, addresses, namespaces, failure limits, shared objects."""

import argparse
import gc
import socket
import threading
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from pgrole_controller.cli import main
from pgrole_controller.console import login_throttle
from pgrole_controller.console.console_arguments import LOOPBACK, read_networks
from pgrole_controller.console.console_command import BACKLOG, make_announce
from pgrole_controller.console.console_parser import add_console, read_arguments
from pgrole_controller.console.live import MOST_FEEDS, Live, TooManyFeeds
from pgrole_controller.console.login_throttle import (
    FAILURE_SECONDS,
    MOST_FAILURES,
    MOST_FAILURES_IN_ALL,
    MOST_WAITING,
    Failures,
    LoginQueues,
    Rejected,
)
from pgrole_controller.console.scope import MOST_TRIED, read_namespaces
from pgrole_controller.console.security import RequestRules, client_of, named_client
from pgrole_controller.console.sessions import Sessions
from pgrole_controller.console.viewed_objects import PROGRESS, SharedObjects, ViewedObjects, ViewedStore, ViewerRoom
from pgrole_controller.console.web_server import OwnerKey
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.listening import listen
from pgrole_controller.settings import WrongSetting


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_console(parser.add_subparsers())
    return parser.parse_args(["console", *given])


def test_the_console_uses_the_kubeconfig_on_a_laptop_and_tokens_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert read_arguments(options()).auth == "kubeconfig"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert read_arguments(options()).auth == "token"
    assert read_arguments(options("--kubeconfig", "k")).auth == "kubeconfig"
    assert read_arguments(options("--context", "c")).auth == "kubeconfig"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--host", "0.0.0.0"], "--host"),
        (["--trusted-proxy", "10.0.0.0/8"], "--trusted-proxy"),
        (["--hostname", "example.com"], "--hostname"),
        (["--api-server", "https://x"], "--api-server"),
        (["--auth", "token", "--open"], "--open"),
        (["--auth", "token", "--api-server", "http://10.0.0.1:8080"], "--api-server"),
        (["--auth", "token", "--api-server", "10.0.0.1:6443"], "--api-server"),
        (["--auth", "token", "--api-server", "https://[x"], "--api-server"),
        (["--auth", "token", "--api-server", "https://"], "--api-server"),
        (["--port", "70000"], "--port"),
    ],
)
def test_invalid_or_contradictory_arguments_are_rejected_by_name(given: list[str], named: str) -> None:
    with pytest.raises(WrongSetting, match=named):
        read_arguments(options("--auth", "kubeconfig", *given))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--trusted-proxy", "ingress"], "--trusted-proxy"),
        (["--trusted-proxy", "10.0.0.1/8"], "--trusted-proxy"),
        (["--hostname", "https://pgrole.example.com"], "--hostname"),
        (["--hostname", "pgrole.example.com:8443"], "--hostname"),
        (["--hostname", "[::1]"], "--hostname"),
        (["--hostname", ""], "--hostname"),
        (["--host", "10.1.2.3"], "--hostname"),
        (["--namespace", "Shop"], "--namespace"),
        (["--namespace", "shop,team_a"], "--namespace"),
    ],
)
def test_a_value_that_could_have_no_effect_is_misuse(
    given: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["console", "--auth", "token", *given])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("has_ipv6", [True, False])
def test_every_address_is_served_with_and_without_ipv6(monkeypatch: pytest.MonkeyPatch, has_ipv6: bool) -> None:
    """A pod has addresses of one kind or of both."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_ipv6)
    with listen("::", 0, BACKLOG) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1") if has_ipv6 else ("127.0.0.1",):
            socket.create_connection((address, port), timeout=5).close()


def test_an_address_that_cannot_be_used_is_named_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host, why in (("127.0.0.1", "Address already in use"), ("a" * 64, "not a valid host name")):
            given = ["--auth", "token", "--host", host, "--hostname", "x", "--port", str(port)]
            with pytest.raises(SystemExit) as ended:
                main(["console", *given])
            assert ended.value.code == 1
            assert capsys.readouterr().err.endswith(f"pgrole-controller: cannot listen on {host}:{port}: {why}\n")


def test_an_error_of_the_console_contains_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.write_text("apiVersion: v1\nkind: Config\ncurrent-context: a\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["console", "--auth", "kubeconfig", "--kubeconfig", str(config), "--context", "\x1b[31mred"])
    assert ended.value.code == 2
    assert "\\x1b[31mred" in capsys.readouterr().err


def test_names_and_addresses_by_which_browsers_reach_the_console_are_accepted() -> None:
    names = ["pgrole.example.com", "PGRole.example.com.", "console", "10.1.2.3", "fd00::5", "a_b.example"]
    given = [word for name in names for word in ("--hostname", name)]
    assert read_arguments(options("--auth", "token", *given)).hostnames == tuple(names)


def test_an_invalid_argument_ends_the_program_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["console", "--auth", "kubeconfig", "--host", "0.0.0.0"])
    assert ended.value.code == 2
    assert "loopback" in capsys.readouterr().err


def test_the_console_does_not_wait_for_a_browser_in_the_foreground(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, opened, seen = threading.Event(), threading.Event(), []

    def browse(address: str) -> None:
        seen.append((address, served.wait(10)))  # the page that it loads is served only after `announce` returned
        opened.set()

    monkeypatch.setattr("webbrowser.open", browse)
    announce = make_announce(read_arguments(options("--auth", "kubeconfig", "--open")))
    announce("http://127.0.0.1:8383/?token=a")
    announce("http://127.0.0.1:8383/?token=b")
    served.set()
    assert opened.wait(10)
    assert seen == [("http://127.0.0.1:8383/?token=a", True)]
    assert capsys.readouterr().out == "http://127.0.0.1:8383/?token=a\nhttp://127.0.0.1:8383/?token=b\n"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (["--host", "0.0.0.0"], "http://localhost:8383/"),
        (["--host", "::"], "http://localhost:8383/"),
        (["--host", "::1"], "http://[::1]:8383/"),
        (["--host", "10.1.2.3", "--hostname", "pgrole.example.com"], "https://pgrole.example.com/"),
        (["--host", "10.1.2.3", "--hostname", "fd00::1"], "https://[fd00::1]/"),
    ],
)
def test_the_printed_address_is_one_that_is_answered(given: list[str], address: str) -> None:
    arguments = read_arguments(options("--auth", "token", *given))
    assert arguments.address(8383) == address
    rules = RequestRules(LOOPBACK | set(arguments.hostnames), None)
    assert rules.knows_host(urlsplit(address).netloc)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy", "10.0.0.0/33", ""])
def test_an_invalid_network_is_rejected(text: str) -> None:
    with pytest.raises(WrongSetting, match="--trusted-proxy"):
        read_networks([text])


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8383", True),
        ("LOCALHOST:8383", True),
        ("[::1]:8383", True),
        ("localhost.:8383", True),
        ("localhost", False),
        ("localhost:8384", False),
        ("localhost:8383/", False),
        ("localhost:8383@attacker.example", False),
        ("attacker.example:8383", False),
        ("localhost.attacker.example:8383", False),
        ("localhost:", False),
        ("localhost:99999", False),
        ("[::1", False),
        ("", False),
        (" localhost:8383", False),
    ],
)
def test_a_host_is_known_by_name_and_port(host: str, known: bool) -> None:
    assert RequestRules(LOOPBACK, 8383).knows_host(host) is known


def test_any_port_is_accepted_where_a_proxy_may_change_it() -> None:
    rules = RequestRules(LOOPBACK | {"pgrole.example.com"}, None)
    assert rules.knows_host("PGRole.example.com")
    assert rules.knows_host("pgrole.example.com:443")


@pytest.mark.parametrize(
    ("address", "trusted"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("10.2.0.1", False), ("fd00::5", True), ("", False), ("x", False)],
)
def test_an_address_is_trusted_in_either_notation(address: str, trusted: bool) -> None:
    assert RequestRules(LOOPBACK, None, read_networks(["10.1.0.0/16", "fd00::/8"])).trusts(address) is trusted


def test_no_address_is_trusted_by_default() -> None:
    assert not RequestRules(LOOPBACK, None).trusts("127.0.0.1")


def test_namespaces_are_read_without_invalid_ones_and_up_to_a_limit() -> None:
    text = "shop, billing\n\tshop ../etc A b_c -x x- " + "y" * 64
    assert read_namespaces(text) == ("shop", "billing")
    assert len(read_namespaces(" ".join(f"n{n}" for n in range(1000)))) == MOST_TRIED


def test_failures_are_limited_per_address_and_in_total_and_forgotten_after_a_minute() -> None:
    failures = Failures()
    for _ in range(MOST_FAILURES):
        assert not failures.exceeded("a", 100.0)
        failures.count("a")
    assert failures.exceeded("a", 100.0)
    assert not failures.exceeded("b", 100.0)
    for n in range(MOST_FAILURES_IN_ALL):
        failures.count(f"c{n}")
    assert failures.exceeded("b", 100.0)
    assert not failures.exceeded(None, 100.0)
    assert not failures.exceeded("a", 100.0 + FAILURE_SECONDS)


def test_a_successful_attempt_does_not_count_as_a_failure() -> None:
    failures = Failures()
    for _ in range(3 * MOST_FAILURES):
        failures.count("a")
        failures.forgive("a")
    assert not failures.exceeded("a", 0.0)
    failures.forgive("b")
    failures.forgive(None)
    assert not failures.exceeded("b", 0.0)


@pytest.mark.parametrize(("status", "slowed"), [(401, True), (403, True), (429, False), (500, False), (503, False)])
async def test_only_attempts_that_fail_through_their_own_fault_slow_down_others(
    status: int, slowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    class Refusing:
        def connect(self, *_: object) -> AbstractAsyncContextManager[Client]:
            raise ApiError(status, "Reason", "message")

    async def wait(_: LoginQueues, address: str) -> None:
        turns.append(address)

    monkeypatch.setattr(LoginQueues, "wait", wait)
    async with anyio.create_task_group() as tasks:
        attempts = Sessions(tasks, Refusing())
        for n in range(MOST_FAILURES + 1):
            with pytest.raises(Rejected):
                await attempts.log_in(f"token-{n}", (), "10.1.2.3")
    assert bool(turns) is slowed


async def test_a_feed_ends_with_the_session_that_opened_it() -> None:
    live, mine, other = Live(), object(), object()
    with live.feed(mine) as one, live.feed(other) as two:
        live.close(mine)
        assert (one.closed, two.closed) == (True, False)
        live.close()
        assert two.closed


async def test_feeds_of_closed_pages_make_room_for_others() -> None:
    live, gone = Live(), False
    with ExitStack() as stack:
        left = [stack.enter_context(live.feed(is_gone=lambda: gone)) for _ in range(MOST_FEEDS)]
        with pytest.raises(TooManyFeeds):
            stack.enter_context(live.feed())
        gone = True
        stack.enter_context(live.feed())
        assert all(feed.closed for feed in left)
        for _ in range(MOST_FEEDS - 1):
            stack.enter_context(live.feed())
        with pytest.raises(TooManyFeeds):
            stack.enter_context(live.feed())


def an_object(version: str = "1", text: str = "") -> dict[str, object]:
    about = {"namespace": "shop", "name": "app", "uid": "u", "resourceVersion": version}
    return {"kind": "PgRole", "metadata": about, "spec": {"comment": text}}


def test_the_token_in_the_printed_address_opens_one_session() -> None:
    printed: list[str] = []
    owner = OwnerKey(Mock(), printed.append)
    (token,) = printed
    assert not owner.redeem("")
    assert not owner.redeem(token[:-1])
    assert owner.redeem(token)
    assert not owner.redeem(token)
    assert not owner.redeem("")
    owner.renew()
    assert not owner.redeem(token)
    assert owner.redeem(printed[-1])


def test_equal_objects_share_memory_and_different_ones_never_do() -> None:
    shared = SharedObjects()
    first, same = shared.share(pack(an_object())), shared.share(pack(an_object()))
    assert first is same
    assert shared.share(pack(an_object(text="other"))) is not first  # as another API server might answer
    assert shared.share(pack(an_object("2"))) is not first


def test_an_object_that_no_one_holds_is_forgotten() -> None:
    shared = SharedObjects()
    held = shared.share(pack(an_object()))
    shared.share(pack(an_object("2")))
    gc.collect()
    assert len(shared) == 1
    assert held.resource_version == "1"


def test_viewed_objects_are_read_as_a_mapping_of_parsed_objects() -> None:
    key = Key("shop", "app")
    objects = ViewedObjects({key: pack(an_object(text="x"))})
    assert objects[key]["spec"]["comment"] == "x"
    assert (list(objects), len(objects), key in objects, Key("a", "b") in objects) == ([key], 1, True, False)
    with pytest.raises(KeyError):
        objects[Key("a", "b")]


def test_a_partial_list_is_visible_until_the_complete_list_replaces_it() -> None:
    told: list[int] = []
    store = ViewedStore(SharedObjects(), ViewerRoom(), lambda: None, lambda: told.append(len(store.seen())))
    items = [
        pack({"metadata": {"namespace": "shop", "name": f"app-{number}", "uid": f"u{number}", "resourceVersion": "1"}})
        for number in range(PROGRESS)
    ]
    shared = [store.share(item) for item in items]
    assert (store.reading, store.begun.is_set()) == (True, True)
    assert len(store.seen()) == PROGRESS
    store.replace(shared[1:])
    store.answered.set()
    assert not store.reading
    assert Key("shop", "app-0") not in store.seen()
    assert told == [PROGRESS, PROGRESS - 1]


def test_a_refusal_discards_a_partial_list() -> None:
    store = ViewedStore(SharedObjects(), ViewerRoom(), lambda: None, lambda: None)
    store.share(pack({"metadata": {"namespace": "shop", "name": "app", "uid": "u", "resourceVersion": "1"}}))
    store.refuse("forbidden")
    assert (dict(store.seen()), store.reading) == ({}, False)


def a_request(peer: str, *forwarded: str) -> web.Request:
    transport = Mock()
    transport.get_extra_info.return_value = (peer, 4711)
    protocol = Mock(transport=transport)
    headers = CIMultiDict([("X-Forwarded-For", each) for each in forwarded])
    return make_mocked_request("GET", "/", headers=headers, transport=transport, protocol=protocol)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # anyone may write the header
        ("10.1.0.1", [], "10.1.0.1"),
        ("10.1.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # the client wrote the first one itself
        ("10.1.0.1", ["203.0.113.9, 198.51.100.7, 10.1.0.2"], "198.51.100.7"),
        ("10.1.0.1", ["203.0.113.9", "198.51.100.7"], "198.51.100.7"),
        ("10.1.0.1", ["198.51.100.7, unknown"], "10.1.0.1"),
        ("10.1.0.1", ["10.1.0.3,,10.1.0.2"], "10.1.0.2"),
        ("::ffff:10.1.0.1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", [], "192.0.2.1"),
        ("", ["198.51.100.7"], ""),
    ],
)
def test_the_client_address_is_taken_from_trusted_proxies_only(peer: str, forwarded: list[str], client: str) -> None:
    rules = RequestRules(LOOPBACK, None, read_networks(["10.1.0.0/16"]))
    assert client_of(a_request(peer, *forwarded), rules) == client


@pytest.mark.parametrize("peer", ["10.1.0.1", "::ffff:10.1.0.1", "fd00::5"])
def test_a_proxy_that_names_no_client_is_none_itself(peer: str) -> None:
    rules = RequestRules(LOOPBACK, None, read_networks(["10.1.0.0/16", "fd00::/8"]))
    assert named_client(a_request(peer), rules) is None
    assert named_client(a_request(peer, "198.51.100.7"), rules) == "198.51.100.7"


async def test_addresses_take_turns_and_attempts_from_one_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "SLOWED_SECONDS", 0.001)
    queues, order = LoginQueues(), []

    async def attempt(address: str, number: int) -> None:
        await queues.wait(address)
        order.append((address, number))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(attempt, "attacker", number)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(attempt, "owner", 0)
        await anyio.lowlevel.checkpoint()
        assert len(queues) > 40
    assert order.index(("owner", 0)) <= 3
    assert [number for address, number in order if address == "attacker"] == list(range(50))
    assert len(queues) == 0


async def test_an_address_that_floods_the_queues_delays_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "SLOWED_SECONDS", 0.001)
    queues, ends = LoginQueues(), []

    async def attempt(address: str) -> None:
        try:
            await queues.wait(address)
        except Rejected as error:
            ends.append((address, error.status))
        else:
            ends.append((address, 200))

    async with anyio.create_task_group() as tasks:
        for _ in range(3 * MOST_WAITING):
            tasks.start_soon(attempt, "attacker")
        for number in range(20):
            tasks.start_soon(attempt, f"owner-{number}")
    assert all((f"owner-{number}", 200) in ends for number in range(20))
    assert ends.count(("attacker", 429)) >= 2 * MOST_WAITING
    assert ends.count(("attacker", 200)) > 0
    assert len(queues) == 0


async def test_a_cancelled_attempt_leaves_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = LoginQueues()
    with anyio.move_on_after(0.001):
        await queues.wait("a")
    assert len(queues) == 0
    monkeypatch.setattr(login_throttle, "SLOWED_SECONDS", 0.0)
    with anyio.fail_after(5):
        await queues.wait("a")
