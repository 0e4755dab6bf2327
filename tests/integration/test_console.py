"""The console's server part against a real API server: who sees what, live."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import anyio
import pytest
import yarl

from pgrole_controller.console import scope, viewer
from pgrole_controller.kube.reflector import reflect
from pgrole_controller.local.apiserver import ApiServer
from tests.integration.console_stand import (
    DEADLINE,
    Accounts,
    Browser,
    RunningConsole,
    declare_role,
    patch_role,
    run_test_console,
)


def read_form(html: str) -> dict[str, str]:
    return {name: unescape(value) for name, value in re.findall(r'<input name="(\w+)" value="([^"]*)">', html)}


def of_token(server: ApiServer, **given: Any) -> dict[str, Any]:
    return {"certificate_authority": str(server.ca), "api_server": server.url} | given


async def shown_once(browser: Browser, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    with anyio.fail_after(DEADLINE):
        while True:
            shown = await browser.show()
            if condition(shown):
                return shown
            await anyio.sleep(0.05)


async def test_a_viewer_with_every_right_sees_all_roles_and_servers(api_server: ApiServer, namespace: str) -> None:
    token = await Accounts(api_server).create(namespace, everything=True)
    await declare_role(api_server, namespace, "orders")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token) == 303
        shown = await browser.show()
        assert f"{namespace}/orders" in shown["roles"]
        assert shown["namespaces"] is None
        assert not shown["servers_hidden"]
        assert shown["viewer"].startswith(f"system:serviceaccount:{namespace}:viewer-")


async def test_signing_in_leads_to_the_page_asked_for(api_server: ApiServer, namespace: str) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    path = f"/roles/{namespace}/a%20b?drifts=all&since=2d"
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.next_page("/") == "/login"
        login = await browser.next_page(path)
        form = read_form(await browser.text(login))
        assert form["page"] == path
        mistaken = {**form, "token": "wrong", "namespaces": namespace}
        async with browser.session.post("/login", data=mistaken) as answer:
            form = read_form(await answer.text())
        assert form["page"] == path
        assert await browser.next_page("/login", {**form, "token": token, "namespaces": namespace}) == path
        assert await browser.next_page(login) == path


@pytest.mark.parametrize("by_form", [True, False])
async def test_a_viewer_of_one_namespace_sees_only_that_one(
    api_server: ApiServer, namespace: str, by_form: bool
) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "orders")
    started_with = () if by_form else (namespace, "default")
    async with (
        run_test_console(**of_token(api_server, namespaces=started_with)) as console,
        console.browser() as browser,
    ):
        await browser.log_in(token, f"kube-system, {namespace}" if by_form else "")
        shown = await browser.show()
    assert list(shown["roles"]) == [f"{namespace}/orders"]
    assert shown["namespaces"] == [namespace]
    assert shown["servers_hidden"]


async def test_a_viewer_of_more_namespaces_than_the_console_watches_is_told_so(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "MOST_WATCHED", 1)
    token = await Accounts(api_server).create(namespace, sees=[namespace, "default"])
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, f"{namespace},default") == 303
        shown = await browser.show()
        assert (shown["namespaces"], shown["cut"]) == ([namespace], True)


async def test_a_namespace_that_a_viewer_may_list_but_not_watch_is_not_shown_as_empty(
    api_server: ApiServer, namespace: str
) -> None:
    accounts = Accounts(api_server)
    token = await accounts.create(namespace, lists=[namespace])
    await declare_role(api_server, namespace, "orders")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        version = (await shown_once(browser, lambda shown: shown["namespaces"] == []))["version"]
        await anyio.sleep(0.5)
        assert (await browser.show())["version"] == version  # the console does not list it over and over


async def test_a_viewer_without_rights_sees_nothing(api_server: ApiServer, namespace: str) -> None:
    token = await Accounts(api_server).create(namespace)
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        shown = await browser.show()
    assert (shown["roles"], shown["namespaces"], shown["servers_hidden"]) == ({}, [], True)


async def test_a_change_between_page_and_stream_is_announced(api_server: ApiServer, namespace: str) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "orders", connectionLimit=3)
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        version = (await browser.show())["version"]
        await patch_role(api_server, namespace, "orders", {"connectionLimit": 4})
        changed = await shown_once(browser, lambda shown: bool(shown["version"] != version))
        async with browser.events(version) as events:
            assert await anext(events) == ["connection"]
        async with browser.events(changed["version"]) as events:
            await patch_role(api_server, namespace, "orders", {"connectionLimit": 5})
            assert await anext(events) == [f"role/{namespace}/orders"]


async def test_a_change_is_announced_and_then_shown(api_server: ApiServer, namespace: str) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "orders", connectionLimit=3)
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        await browser.show()
        async with browser.events() as events:
            await patch_role(api_server, namespace, "orders", {"connectionLimit": 4})
            assert await anext(events) == [f"role/{namespace}/orders"]
            shown = await browser.show("/roles", **{"X-Fragment": "1"})
    assert shown["roles"][f"{namespace}/orders"]["connectionLimit"] == 4


async def test_losing_a_right_empties_the_page(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgrole_controller.console.viewer.SCOPE_SECONDS", 0.2)
    accounts = Accounts(api_server)
    token = await accounts.create(namespace, sees=[namespace], name="leaver")
    await declare_role(api_server, namespace, "orders")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        assert (await browser.show())["roles"]
        await accounts.revoke(namespace, "leaver")
        shown = await shown_once(browser, lambda page: page["namespaces"] == [])
    assert not shown["roles"]


async def test_losing_a_right_empties_the_page_long_before_the_watch_ends(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "RIGHTS_SECONDS", 0.2)
    accounts = Accounts(api_server)
    token = await accounts.create(namespace, sees=[namespace], name="revoked")
    await declare_role(api_server, namespace, "app")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        assert (await browser.show())["roles"]
        await accounts.revoke(namespace, "revoked")
        assert viewer.TIMING.watch_least > DEADLINE
        shown = await shown_once(browser, lambda page: page["namespaces"] == [])
    assert not shown["roles"]


async def test_losing_a_right_for_the_second_time_empties_the_page_as_soon(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "RIGHTS_SECONDS", 0.2)
    monkeypatch.setattr(viewer, "CHECK_SECONDS", 0.2)  # notices the right that is granted again
    accounts = Accounts(api_server)
    token = await accounts.create(namespace, sees=[namespace], name="returner")
    await declare_role(api_server, namespace, "app")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        assert (await browser.show())["roles"]
        await accounts.revoke(namespace, "returner")
        await shown_once(browser, lambda page: page["namespaces"] == [])
        await accounts.bind(namespace, namespace, "returner")
        await shown_once(browser, lambda page: bool(page["roles"]))
        await accounts.revoke(namespace, "returner")
        assert viewer.TIMING.watch_least > DEADLINE
        shown = await shown_once(browser, lambda page: page["namespaces"] == [])
    assert not shown["roles"]


async def test_a_requested_object_is_read_in_full_with_the_viewers_own_rights(
    api_server: ApiServer, namespace: str
) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "app")
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles/app"
    obj = await api_server.request("GET", path)
    obj["metadata"]["annotations"] = {"note": "x" * 200_000}
    await api_server.request("PUT", path, obj)
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        whole = await shown_once(browser, lambda page: bool(page["roles"]))
        assert whole["fetched"] is None
        assert "x" * 200_000 in (await browser.show(f"/whole{path}"))["fetched"]
        assert "does not exist" in (await browser.show(f"/whole{path}-gone"))["problem"]
        assert "may not get" in (await browser.show(f"/whole{path.replace(namespace, 'default')}"))["problem"]


async def test_an_access_review_that_contradicts_a_list_is_not_repeated(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    async def deny(_client: object, _resource: object, place: str | None) -> bool:
        asked.append(place)
        return False

    monkeypatch.setattr(viewer, "RIGHTS_SECONDS", 0.05)
    monkeypatch.setattr(viewer, "may_still_list", deny)
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "app")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        with anyio.fail_after(DEADLINE):
            while not asked:  # noqa: ASYNC110 - seen from outside only
                await anyio.sleep(0.01)
        await anyio.sleep(0.3)
        assert (await browser.show())["roles"]
    assert asked == [namespace]


async def test_an_unreachable_api_server_is_announced_and_the_page_keeps_its_content(
    api_server: ApiServer, namespace: str
) -> None:
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "orders")
    async with (
        cut_before(api_server) as cut,
        run_test_console(**of_token(api_server, api_server=cut.url)) as console,
        console.browser() as browser,
    ):
        await browser.log_in(token, namespace)
        assert (await browser.show())["connected"]
        async with browser.events() as events:
            await cut.sever()
            assert await anext(events) == ["connection"]
            shown = await browser.show()
            assert not shown["connected"]
            assert f"{namespace}/orders" in shown["roles"]
            await declare_role(api_server, namespace, "later")
            await cut.mend()
            await _told(events, f"role/{namespace}/later")
        shown = await shown_once(browser, lambda page: page["connected"])
        assert f"{namespace}/later" in shown["roles"]


async def _told(events: Any, name: str) -> None:
    async for names in events:
        if name in names:
            return
    pytest.fail(f"{name} was not announced")


async def test_idle_watches_stop_and_restart_with_the_next_request(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgrole_controller.console.viewer.IDLE_SECONDS", 0.3)
    caplog.set_level("INFO", "pgrole_controller")
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    await declare_role(api_server, namespace, "orders")
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        assert (await browser.show())["roles"]
        with anyio.fail_after(DEADLINE):
            while "watches stopped: viewer is idle" not in caplog.messages:  # noqa: ASYNC110 - a line of the log
                await anyio.sleep(0.05)
        assert f"{namespace}/orders" in (await browser.show())["roles"]


async def test_a_request_while_idle_watches_end_starts_them_again(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, ended = anyio.Event(), anyio.Event()

    async def end_late(*given: Any, **named: Any) -> None:
        try:
            await reflect(*given, **named)
        finally:
            ending.set()
            with anyio.move_on_after(DEADLINE, shield=True):
                await ended.wait()

    monkeypatch.setattr(viewer, "reflect", end_late)
    monkeypatch.setattr(viewer, "IDLE_SECONDS", 1.0)
    token = await Accounts(api_server).create(namespace, sees=[namespace])
    async with run_test_console(**of_token(api_server)) as console, console.browser() as browser:
        await browser.log_in(token, namespace)
        await browser.show()
        with anyio.fail_after(DEADLINE):
            await ending.wait()
        monkeypatch.setattr(viewer, "IDLE_SECONDS", 600.0)
        async with browser.events() as events:
            ended.set()
            await declare_role(api_server, namespace, "later")
            await _told(events, f"role/{namespace}/later")


class TestLaptop:
    @staticmethod
    async def enter(console: RunningConsole, browser: Browser) -> int:
        return await browser.status(str(yarl.URL(console.announced[-1]).relative()))

    async def test_the_printed_address_opens_one_session(self, api_server: ApiServer, namespace: str) -> None:
        await declare_role(api_server, namespace, "orders")
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console,
            console.browser() as browser,
            console.browser() as thief,
        ):
            assert await browser.status("/roles") == 303
            assert await self.enter(console, browser) == 303
            assert f"{namespace}/orders" in (await browser.show())["roles"]
            assert await self.enter(console, thief) == 403
            assert await thief.status("/roles", headers={"X-Fragment": "1"}) == 401
            assert await thief.status("/login") == 401

    async def test_a_prefetch_does_not_consume_the_address(self, api_server: ApiServer) -> None:
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console,
            console.browser() as browser,
        ):
            path = str(yarl.URL(console.announced[-1]).relative())
            assert await browser.status(path, headers={"Sec-Purpose": "prefetch;prerender"}) == 503
            assert await browser.status(path) == 303

    async def test_logout_prints_a_new_address(self, api_server: ApiServer) -> None:
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console,
            console.browser() as browser,
        ):
            await self.enter(console, browser)
            csrf = await browser.form_token("/")
            assert await browser.status("/logout", "POST", data={"csrf": csrf}) == 303
            assert await browser.status("/") == 303
            assert len(console.announced) == 2
            assert await self.enter(console, browser) == 303
            assert (await browser.show())["connected"]

    @pytest.mark.slow
    async def test_refused_credentials_are_named_until_the_token_file_has_others(
        self, api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(viewer, "CHECK_SECONDS", 0.2)
        monkeypatch.setattr(viewer, "TIMING", replace(viewer.TIMING, watch_least=1.0, watch_most=2.0))
        accounts, config, token = Accounts(api_server), tmp_path / "kubeconfig", tmp_path / "token"
        token.write_text(await accounts.create(namespace, everything=True, name="me"), encoding="utf-8")
        written = re.sub("token: .*", f"tokenFile: {token}", api_server.kubeconfig.read_text(encoding="utf-8"))
        config.write_text(written, encoding="utf-8")
        await declare_role(api_server, namespace, "orders")
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(config)) as console,
            console.browser() as browser,
        ):
            assert await self.enter(console, browser) == 303
            await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"])
            await accounts.delete(namespace, "me")
            await shown_once(browser, lambda shown: not shown["accepted"])
            emptied = await shown_once(browser, lambda shown: not shown["roles"])
            assert (emptied["accepted"], emptied["connected"], emptied["reading"]) == (False, True, True)
            token.write_text(await accounts.create(namespace, everything=True), encoding="utf-8")
            shown = await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"])
            assert shown["accepted"]

    async def test_a_plugin_that_fails_when_a_viewer_returns_is_named_and_does_not_run_all_the_time(
        self, api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(viewer, "IDLE_SECONDS", 0.5)
        monkeypatch.setattr(viewer, "CHECK_SECONDS", 3.0)
        config, status, runs = tmp_path / "kubeconfig", tmp_path / "status", tmp_path / "runs"
        credential = say_token(await Accounts(api_server).create(namespace, everything=True))
        status.write_text(credential, encoding="utf-8")
        write_plugin(config, api_server, f"echo >> {runs}; cat {status}")
        await declare_role(api_server, namespace, "orders")
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(config)) as console,
            console.browser() as browser,
        ):
            assert await self.enter(console, browser) == 303
            await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"])
            status.unlink()
            runs.unlink()
            shown: dict[str, Any] = {}
            with anyio.fail_after(DEADLINE):
                while not runs.exists():
                    await anyio.sleep(1.0)  # longer than the watches of an idle viewer
                    shown = await browser.show()
            assert (shown["accepted"], shown["connected"], shown["roles"]) == (False, True, {})
            assert runs.read_text(encoding="utf-8") == "\n"
            monkeypatch.setattr(viewer, "IDLE_SECONDS", 600.0)
            status.write_text(credential, encoding="utf-8")
            assert (await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"]))["accepted"]

    @pytest.mark.slow
    async def test_roles_are_shown_again_once_a_plugin_has_credentials_after_a_time_without(
        self, api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(viewer, "SCOPE_SECONDS", 0.3)
        monkeypatch.setattr(viewer, "CHECK_SECONDS", 0.2)
        accounts, config, status = Accounts(api_server), tmp_path / "kubeconfig", tmp_path / "status"
        status.write_text(say_token(await accounts.create(namespace, everything=True, name="myself")), encoding="utf-8")
        write_plugin(config, api_server, f"cat {status}")
        await declare_role(api_server, namespace, "orders")
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(config)) as console,
            console.browser() as browser,
        ):
            assert await self.enter(console, browser) == 303
            await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"])
            status.unlink()
            await accounts.delete(namespace, "myself")
            await shown_once(browser, lambda shown: not shown["accepted"] and not shown["roles"])
            status.write_text(say_token(await accounts.create(namespace, everything=True)), encoding="utf-8")
            shown = await shown_once(browser, lambda shown: f"{namespace}/orders" in shown["roles"])
            assert (shown["accepted"], shown["namespaces"]) == (True, None)


PLUGIN_VERSION = "client.authentication.k8s.io/v1"


def say_token(token: str) -> str:
    """Returns what a credential plugin prints."""
    return json.dumps({"apiVersion": PLUGIN_VERSION, "kind": "ExecCredential", "status": {"token": token}})


def write_plugin(config: Path, server: ApiServer, script: str) -> None:
    """Writes a kubeconfig whose credentials `script` prints."""
    plugin = {"apiVersion": PLUGIN_VERSION, "command": "sh", "args": ["-c", script]}
    written = re.sub("token: .*", f"exec: {json.dumps(plugin)}", server.kubeconfig.read_text(encoding="utf-8"))
    config.write_text(written, encoding="utf-8")


class Cut:
    """A relay of TCP connections that can be severed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._severed = False
        self._open: set[anyio.abc.SocketStream] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started()
        async with listener:
            await listener.serve(self._relay)

    async def sever(self) -> None:
        self._severed = True
        for stream in list(self._open):
            await anyio.aclose_forcefully(stream)

    async def mend(self) -> None:
        self._severed = False

    async def _relay(self, near: anyio.abc.SocketStream) -> None:
        if self._severed:
            await anyio.aclose_forcefully(near)
            return
        far = await anyio.connect_tcp("127.0.0.1", self._target)
        self._open |= {near, far}
        async with near, far, anyio.create_task_group() as tasks:
            tasks.start_soon(self._copy, near, far)
            await self._copy(far, near)
            tasks.cancel_scope.cancel()
        self._open -= {near, far}

    @staticmethod
    async def _copy(source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
        try:
            async for chunk in source:
                await target.send(chunk)
            await target.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return


@asynccontextmanager
async def cut_before(server: ApiServer) -> AsyncIterator[Cut]:
    port = yarl.URL(server.url).port
    assert port is not None
    relay = Cut(port)
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.run)
        yield relay
        tasks.cancel_scope.cancel()
