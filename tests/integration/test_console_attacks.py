"""Attacks on the console, each against the real one in front of a real API server."""

import asyncio
import gzip
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
import yarl

from pgrole_controller.console import connections, login_throttle, sessions, viewer
from pgrole_controller.console.console_command import serve
from pgrole_controller.console.snapshot import Page, PageQuestion, Snapshot
from pgrole_controller.local.apiserver import ApiServer
from tests.integration.console_stand import (
    DEADLINE,
    Accounts,
    Browser,
    PlainPages,
    RunningConsole,
    console_arguments,
    declare_role,
    patch_role,
    run_test_console,
)

EXPECTED = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "no-store",
}


@pytest.fixture
def given(api_server: ApiServer) -> dict[str, Any]:
    return {"api_server": api_server.url, "certificate_authority": str(api_server.ca)}


@asynccontextmanager
async def logged_in(given: dict[str, Any], token: str, namespace: str) -> AsyncIterator[tuple[RunningConsole, Browser]]:
    async with run_test_console(**given) as console, console.browser() as browser:
        assert await browser.log_in(token, namespace) == 303
        yield console, browser


async def cookies_of(browser: Browser) -> dict[str, str]:
    return {one.key: one.value for one in browser.session.cookie_jar}


async def exchange(port: int, request: bytes, *, seconds: float = DEADLINE) -> bytes:
    """Sends bytes as they are; returns the answer until the console closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        with anyio.fail_after(seconds):
            return await reader.read()
    finally:
        writer.close()


class TestCrossSiteRequests:
    """A page of another site, open in the viewer's browser."""

    @pytest.mark.parametrize(
        "host",
        [
            "attacker.example",
            "127.0.0.1.attacker.example",
            "169.254.169.254",
            "user@127.0.0.1",
            "[::1",
            "",
            "localhost#x",
        ],
    )
    async def test_a_rebound_host_name_is_refused(self, given: dict[str, Any], host: str) -> None:
        async with run_test_console(**given) as console:
            answer = await exchange(
                console.port, f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
        assert answer.split()[1] in (b"403", b"400")

    async def test_a_request_with_two_host_headers_or_none_is_refused(self, given: dict[str, Any]) -> None:
        async with run_test_console(**given) as console:
            for head in ("Host: localhost\r\nHost: attacker.example\r\n", ""):
                request = f"GET / HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode()
                assert (await exchange(console.port, request)).split()[1] in (b"403", b"400")

    async def test_a_laptop_console_answers_on_its_own_port_only(self, api_server: ApiServer) -> None:
        async with run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console:
            request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n"
            assert (await exchange(console.port, request)).startswith(b"HTTP/1.1 403")

    @pytest.mark.parametrize("origin", ["https://attacker.example", "null", "http://127.0.0.1:1", "http://localhost"])
    async def test_a_request_from_another_origin_is_refused(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, origin: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            for path in ("/", "/events", "/roles"):
                assert await browser.status(path, headers={"Origin": origin}) == 403
            csrf = await browser.form_token("/")
            assert await browser.status("/logout", "POST", data={"csrf": csrf}, headers={"Origin": origin}) == 403
            await browser.show()

    async def test_the_consoles_own_form_is_accepted_if_the_browser_hides_its_origin(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            csrf = {"csrf": await browser.form_token("/")}
            hidden = {"Origin": "null", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            for site, status in (("cross-site", 403), ("same-site", 403), ("none", 403), ("same-origin", 303)):
                sent = {**hidden, "Sec-Fetch-Site": site}
                assert await browser.status("/logout", "POST", data=csrf, headers=sent) == status

    @pytest.mark.parametrize(
        "page",
        [
            "https://evil.example/",
            "//evil.example/",
            "/\\evil.example/",
            "/\t/evil.example/",
            "\\/evil.example",
            "javascript:alert(1)",
            "/roles\r\nSet-Cookie: x=y",
            "/é",
            f"/{'x' * 601}",
        ],
    )
    async def test_signing_in_never_leads_to_another_site(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, page: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with run_test_console(**given) as console, console.browser() as browser:
            login = f"/login?{urlencode({'page': page})}"
            csrf = await browser.form_token(login)
            data = {"csrf": csrf, "page": page, "token": token, "namespaces": namespace}
            assert await browser.next_page("/login", data) == "/"
            assert await browser.next_page(login) == "/"

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    async def test_embedding_and_fetching_by_another_site_are_refused(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, site: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe"), ("no-cors", "script")):
                fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
                assert await browser.status("/", headers=fetch) == 403
            post = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert await browser.status("/logout", "POST", data={}, headers=post) == 403

    async def test_a_link_on_another_site_opens_the_page_without_its_content(self, given: dict[str, Any]) -> None:
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        async with (
            run_test_console(**given) as console,
            console.browser() as browser,
            browser.session.get("/roles", headers=followed) as answer,
        ):
            assert answer.status == 200
            text = await answer.text()
        assert "refresh" in text
        assert "<main" not in text

    @pytest.mark.parametrize("csrf", [None, "", "x", "forged"])
    async def test_a_forged_form_is_refused(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, csrf: str | None
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        data = {} if csrf is None else {"csrf": csrf}
        async with logged_in(given, token, namespace) as (console, browser):
            assert await browser.status("/logout", "POST", data=data) == 403
            async with console.browser() as other:
                theirs = await other.form_token()
                assert await browser.status("/logout", "POST", data={"csrf": theirs}) == 403
                assert await browser.status("/login", "POST", data={"csrf": theirs, "token": token}) == 403
                assert await other.status("/login", "POST", data={**data, "token": token}) == 403
            await browser.show()

    async def test_a_form_in_another_content_type_is_refused(self, given: dict[str, Any]) -> None:
        async with run_test_console(**given) as console, console.browser() as browser:
            csrf = await browser.form_token()
            assert await browser.status("/login", "POST", json={"csrf": csrf, "token": "x"}) == 415

    @pytest.mark.parametrize("charset", ["punycode", "utf-7", "unknown", "idna", "utf-16", "hex"])
    async def test_the_charset_that_a_form_names_is_ignored(self, given: dict[str, Any], charset: str) -> None:
        async with run_test_console(**given) as console, console.browser() as browser:
            headers = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
            csrf = await browser.form_token()
            form = f"csrf={csrf}&token=forged".encode()
            assert await browser.status("/login", "POST", data=form, headers=headers) == 401
            for wrong in (b"csrf=\xff", b"a=1&" * 50):
                assert await browser.status("/login", "POST", data=wrong, headers=headers) == 400
            for wrong in (b"csrf=%ff", b"csrf=%ed%a0%80", b"csrf=%C3%BC", b"csrf", b""):
                assert await browser.status("/login", "POST", data=wrong, headers=headers) == 403

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
    async def test_a_compressed_form_is_refused_and_not_decompressed(
        self, given: dict[str, Any], encoding: str
    ) -> None:
        bomb = gzip.compress(b"x" * 20_000_000)
        async with run_test_console(**given) as console, console.browser() as browser:
            headers = {"Content-Encoding": encoding, "Content-Type": "application/x-www-form-urlencoded"}
            assert await browser.status("/login", "POST", data=bomb, headers=headers) == 415

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
    async def test_requests_with_writing_methods_are_refused(self, given: dict[str, Any], method: str) -> None:
        async with run_test_console(**given) as console:
            target = "127.0.0.1:1" if method == "CONNECT" else "/roles"
            request = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
            answer = await exchange(console.port, request)
        assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400", b"HTTP/1.1 405"))


class TestAnswers:
    async def test_every_response_has_the_security_headers(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            for path in (
                "/",
                "/login",
                "/nowhere",
                "/static/live.js",
                "/static/none",
                "/healthz",
                "/roles?a=b",
                "/events",
            ):
                async with browser.session.get(path, allow_redirects=False) as answer:
                    assert {name: answer.headers.get(name) for name in EXPECTED} == EXPECTED, path
                    policy = dict(rule.split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split("; "))
                    assert policy.pop("default-src") == policy.pop("frame-ancestors") == policy.pop("base-uri")
                    assert set(policy.values()) == {"'self'"}
                    assert "Server" not in answer.headers
                    answer.close()

    @pytest.mark.parametrize(
        ("request_text", "status"),
        [
            ("SECRET\x01 / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
            ("GET / HTTP/9.9-SECRET\r\nHost: localhost\r\n\r\n", b"400"),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nSECRET\r\n\r\n", b"400"),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: SECRET{long}\r\n\r\n", b"400"),
            ("POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
            (
                "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"400",
            ),
            ("POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n", b"400"),
            ("\x16\x03\x01\x02\x00\x01SECRET\r\n\r\n", b"400"),
            ("GET / HTTP/1.1\r\nHost: SECRET\r\nConnection: close\r\n\r\n", b"403"),
            ("DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"403"),
            ("POST /roles HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"405"),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nExpect: other\r\nConnection: close\r\n\r\n", b"417"),
            ("GET /static/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
            ("GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"401"),
            (
                "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 41000\r\n\r\n{long}{long}",
                b"413",
            ),
        ],
    )
    async def test_error_responses_have_the_security_headers_and_reveal_no_version(
        self, given: dict[str, Any], request_text: str, status: bytes
    ) -> None:
        async with run_test_console(**given) as console:
            answer = await exchange(console.port, request_text.format(long="x" * 20_500).encode("latin-1"))
        head = answer.partition(b"\r\n\r\n")[0]
        assert head.split()[1] == status, answer
        for name, value in EXPECTED.items():
            assert f"{name}: {value}".encode() in head, (name, head)
        assert b"Content-Security-Policy: default-src 'none'" in head
        assert b"aiohttp" not in answer
        assert b"Python" not in answer
        assert b"SECRET" not in answer

    async def test_an_error_page_has_a_title_a_language_and_a_link_back(self, given: dict[str, Any]) -> None:
        async with (
            run_test_console(**given) as console,
            console.browser() as browser,
            browser.session.get("/static/none") as answer,
        ):
            text = await answer.text()
        for part in ('<html lang="en">', "<title>Not Found", "<main", "<h1>", 'href="/"', "width=device-width"):
            assert part in text

    @pytest.mark.parametrize(
        "request_text",
        [
            b"GET /roles?q=%ff%ed%a0%80&server=%00 HTTP/1.1\r\nHost: localhost\r\nCookie: __Host-pgrole=\xff\xfe\r\n",
            b"GET /roles?q=\xff HTTP/1.1\r\nHost: localhost\r\n",
            b"GET /roles/%ff/%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\xff\r\n",
            b"GET /login HTTP/1.1\r\nHost: localhost\r\nCookie: __Host-pgrole-form=\xff" + b"\xfe" * 30 + b"\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: \xff\r\n",
        ],
    )
    async def test_undecodable_bytes_cause_no_internal_error(
        self, given: dict[str, Any], request_text: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run_test_console(**given, trusted_proxies=("127.0.0.1",)) as console:
            answer = await exchange(console.port, request_text + b"Connection: close\r\n\r\n")
        assert answer.split()[1] in (b"200", b"303", b"400", b"401", b"403"), answer
        assert "page not rendered" not in caplog.messages

    async def test_an_invalid_token_in_the_address_opens_no_laptop_session(self, api_server: ApiServer) -> None:
        async with run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console:
            for token in (b"%ff", b"%ed%a0%80", b"%C3%BC", b""):
                head = b"Host: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % console.port
                answer = await exchange(console.port, b"GET /?token=" + token + b" HTTP/1.1\r\n" + head)
                assert answer.startswith(b"HTTP/1.1 403"), answer

    async def test_the_session_cookie_is_http_only_secure_and_same_site_strict(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with run_test_console(**given) as console, console.browser() as browser:
            data = {"csrf": await browser.form_token(), "token": token}
            async with browser.session.post("/login", data=data, allow_redirects=False) as answer:
                cookie = answer.cookies["__Host-pgrole"]
        assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "Strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        assert token not in cookie.value
        assert len(cookie.value) >= 40

    @pytest.mark.parametrize(
        "path",
        [
            "/static/../security.py",
            "/static/..%2fsecurity.py",
            "/static/%2e%2e/security.py",
            "/static/%2fetc%2fpasswd",
            "/static/..\\security.py",
            "/static//etc/passwd",
            "/static/live.js%00",
            "/static/",
        ],
    )
    async def test_only_listed_files_are_served(self, given: dict[str, Any], path: str) -> None:
        async with run_test_console(**given) as console:
            request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
            answer = await exchange(console.port, request)
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.1 303"))
        assert b"import" not in answer
        assert b"root:" not in answer

    async def test_markup_in_a_request_is_not_reflected(self, given: dict[str, Any]) -> None:
        async with run_test_console(**given) as console:
            request = b"GET /%3Cscript%3E?x=<script> HTTP/1.1\r\nHost: <script>.example\r\nConnection: close\r\n\r\n"
            assert b"<script" not in await exchange(console.port, request)


class TestTokens:
    async def test_a_token_header_counts_only_from_a_trusted_proxy(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        for header in ({"Authorization": f"Bearer {token}"}, {"X-Forwarded-Access-Token": token}):
            for trusted, status in (((), 303), (("10.0.0.0/8", "::/128"), 303), (("127.0.0.0/8",), 200)):
                async with (
                    run_test_console(**given, trusted_proxies=trusted) as console,
                    console.browser(**header) as browser,
                ):
                    assert await browser.status("/") == status
                    forged = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
                    assert await browser.status("/", headers=forged) == status

    async def test_behind_a_proxy_the_header_identifies_the_viewer_of_each_request(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        accounts = Accounts(api_server)
        one, two = [await accounts.create(namespace, name=name) for name in ("first", "second")]
        async with (
            run_test_console(**given, trusted_proxies=("127.0.0.1/32",)) as console,
            console.browser() as browser,
        ):
            for token, name in ((one, "first"), (two, "second"), (one, "first")):
                shown = await browser.show("/", Authorization=f"Bearer {token}")
                assert shown["viewer"].endswith(f":{name}")
            assert await browser.status("/") == 303
            async with browser.session.get("/", headers={"Authorization": "Bearer forged"}) as answer:
                assert answer.status == 401

    async def test_a_request_with_two_tokens_is_not_authenticated(self, given: dict[str, Any]) -> None:
        async with run_test_console(**given, trusted_proxies=("127.0.0.1",)) as console:
            request = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n"
            answer = await exchange(console.port, request + b"Connection: close\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 303", b"HTTP/1.1 400"))

    async def test_a_revoked_token_ends_session_stream_and_watches(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(viewer, "CHECK_SECONDS", 0.2)
        accounts = Accounts(api_server)
        token = await accounts.create(namespace, sees=[namespace], name="fired")
        async with logged_in(given, token, namespace) as (_, browser):
            await browser.show()
            async with browser.events() as events:
                await accounts.delete(namespace, "fired")
                told = [names async for names in events]
            assert "connection" in told[-1]
            assert await browser.status("/", headers={"X-Fragment": "1"}) == 401
            assert await browser.status("/events") == 401
            assert await browser.status("/") == 303

    async def test_logout_ends_the_session_for_a_stolen_cookie_too(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (console, browser), console.browser() as thief:
            stolen = {"Cookie": f"__Host-pgrole={(await cookies_of(browser))['__Host-pgrole']}"}
            assert await thief.status("/", headers=stolen) == 200
            csrf = await browser.form_token("/")
            assert await browser.status("/logout", "POST", data={"csrf": csrf}) == 303
            assert await thief.status("/", headers=stolen) == 303

    async def test_logout_ends_the_streams_of_its_session_but_not_of_the_viewers_other_session(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (console, browser), console.browser() as other:
            assert await other.log_in(token, namespace) == 303
            await other.show()
            async with browser.events() as stolen, other.events() as kept:
                csrf = await browser.form_token("/")
                assert await browser.status("/logout", "POST", data={"csrf": csrf}) == 303
                assert [names async for names in stolen] == [["connection"]]
                await declare_role(api_server, namespace, "orders")
                assert await anext(kept) == [f"role/{namespace}/orders"]

    async def test_a_page_waiting_when_the_session_ends_redirects_to_the_login(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        waits, goes_on = anyio.Event(), anyio.Event()

        async def wait(_: viewer.Viewer) -> None:
            waits.set()
            await goes_on.wait()

        async with logged_in(given, token, namespace) as (_, browser), anyio.create_task_group() as tasks:
            csrf = await browser.form_token("/")
            monkeypatch.setattr(viewer.Viewer, "wait_until_known", wait)
            answers = []

            async def load(**headers: str) -> None:
                answers.append(await browser.status("/roles", headers=headers))

            tasks.start_soon(load)
            await waits.wait()
            tasks.start_soon(lambda: load(**{"X-Fragment": "1"}))
            assert await browser.status("/logout", "POST", data={"csrf": csrf}) == 303
            goes_on.set()
        assert sorted(answers) == [303, 401]

    async def test_a_session_expires(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "LONGEST_SECONDS", 0.3)
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            with anyio.fail_after(DEADLINE):
                while await browser.status("/") != 303:  # noqa: ASYNC110 - seen from outside only
                    await anyio.sleep(0.05)

    @pytest.mark.parametrize("token", ["", "forged", "two words", "a\r\nX-Injected: 1", "ü" * 10, "x" * 20_000])
    async def test_an_invalid_token_opens_no_session(self, given: dict[str, Any], token: str) -> None:
        async with run_test_console(**given) as console, console.browser() as browser:
            assert await browser.log_in(token) == 401
            assert await browser.status("/") == 303

    async def test_guessing_tokens_is_slowed_down(self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[str] = []

        async def wait(_: login_throttle.LoginQueues, address: str) -> None:
            waited.append(address)

        monkeypatch.setattr(login_throttle.LoginQueues, "wait", wait)
        async with run_test_console(**given) as console, console.browser() as browser:
            csrf = await browser.form_token()
            answers: list[int] = []

            async def guess(number: int) -> None:
                data = {"csrf": csrf, "token": f"guess{number}"}
                answers.append(await browser.status("/login", "POST", data=data))

            async with anyio.create_task_group() as tasks:
                for number in range(3 * login_throttle.MOST_FAILURES):
                    tasks.start_soon(guess, number)
        assert answers == [401] * 3 * login_throttle.MOST_FAILURES
        assert waited == ["127.0.0.1"] * 2 * login_throttle.MOST_FAILURES

    @pytest.mark.parametrize("forwarded", [False, True])
    async def test_a_correct_token_is_accepted_while_others_guess_behind_the_same_proxy(
        self,
        given: dict[str, Any],
        api_server: ApiServer,
        namespace: str,
        forwarded: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        turns: list[str] = []
        wait = login_throttle.LoginQueues.wait

        async def note(queues: login_throttle.LoginQueues, address: str) -> None:
            turns.append(address)
            await wait(queues, address)

        monkeypatch.setattr(login_throttle.LoginQueues, "wait", note)
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        given |= {"trusted_proxies": ("127.0.0.0/8",)} if forwarded else {}
        async with run_test_console(**given) as console:
            attacker = console.browser(**{"X-Forwarded-For": "198.51.100.7"})
            owner = console.browser(**{"X-Forwarded-For": "203.0.113.9"})
            async with attacker as guesses, owner as browser, anyio.create_task_group() as tasks:
                csrf = await guesses.form_token()

                async def guess() -> None:
                    while True:
                        await guesses.status("/login", "POST", data={"csrf": csrf, "token": secrets.token_hex(8)})

                for _ in range(30):
                    tasks.start_soon(guess)
                with anyio.fail_after(DEADLINE):
                    while len(turns) < 40:  # noqa: ASYNC110 - seen from outside only
                        await anyio.sleep(0.01)
                    assert await browser.log_in(token, namespace) == 303
                tasks.cancel_scope.cancel()
        assert set(turns) == ({"198.51.100.7"} if forwarded else {"127.0.0.1"})

    async def test_a_token_does_not_follow_the_api_servers_redirect(self) -> None:
        heard: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        other = await asyncio.start_server(listen, "127.0.0.1", 0)
        target = other.sockets[0].getsockname()[1]

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{target}/\r\n\r\n".encode())
            writer.close()

        hostile = await asyncio.start_server(redirect, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{hostile.sockets[0].getsockname()[1]}"
        async with other, hostile, run_test_console(api_server=address) as console, console.browser() as browser:
            assert await browser.log_in("secret-token") == 502
        assert not any(b"secret-token" in request for request in heard)

    async def test_the_log_and_the_pages_contain_no_token(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with run_test_console(**given, trusted_proxies=("127.0.0.1",)) as console, console.browser() as browser:
            await browser.log_in(token, namespace)
            async with browser.session.get("/") as answer:
                assert token not in await answer.text()
            await browser.status(f"/roles?token={token}")
            await browser.status("/", headers={"Authorization": f"Bearer {token}"})
            await exchange(
                console.port,
                f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}{'x' * 30_000}\r\n\r\n".encode(),
            )
            cookie = (await cookies_of(browser))["__Host-pgrole"]
        written = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
        assert any("request" in line for line in written)
        assert not any(token in line or cookie in line for line in written)

    async def test_the_token_of_the_first_address_is_not_logged(
        self, api_server: ApiServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        async with (
            run_test_console(auth="kubeconfig", kubeconfig=str(api_server.kubeconfig)) as console,
            console.browser() as browser,
        ):
            address = yarl.URL(console.announced[0])
            async with browser.session.get(address, allow_redirects=False) as answer:
                assert answer.headers["Location"] == "/"
        assert "request" in caplog.messages
        written = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
        assert not any(address.query["token"] in line for line in written)


class TestIsolation:
    async def test_a_viewer_never_receives_what_only_another_viewer_may_see(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        accounts = Accounts(api_server)
        wide = await accounts.create(namespace, everything=True)
        narrow = await accounts.create(namespace, sees=[namespace])
        hidden = "kube-public"
        name = f"hidden-{secrets.token_hex(4)}"
        await declare_role(api_server, namespace, "mine")
        async with run_test_console(**given) as console, console.browser() as one, console.browser() as two:
            assert await one.log_in(wide) == 303
            assert await two.log_in(narrow, f"{hidden} {namespace}") == 303
            await one.show()
            await two.show()
            async with one.events() as seen, two.events() as heard:
                await declare_role(api_server, hidden, name)
                with anyio.fail_after(DEADLINE):
                    while f"role/{hidden}/{name}" not in await anext(seen):
                        pass
                await patch_role(api_server, namespace, "mine", {"connectionLimit": 5})
                assert await anext(heard) == [f"role/{namespace}/mine"]
            assert f"{hidden}/{name}" in (await one.show())["roles"]
            for path in ("/", "/roles", f"/roles/{hidden}/{name}"):
                shown = await two.show(path)
                assert name not in json.dumps(shown["roles"])
                assert (shown["servers"], shown["servers_hidden"]) == ([], True)

    async def test_a_session_cannot_be_used_or_guessed_by_another_viewer(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        accounts = Accounts(api_server)
        tokens = [await accounts.create(namespace, sees=[namespace]) for _ in range(2)]
        async with run_test_console(**given) as console, console.browser() as one, console.browser() as two:
            await one.log_in(tokens[0])
            await two.log_in(tokens[1])
            csrf = await one.form_token("/")
            assert await two.status("/logout", "POST", data={"csrf": csrf}) == 403
            mine = await cookies_of(one)
            for guess in ("", mine["__Host-pgrole"][:-1], mine["__Host-pgrole"] + "x", tokens[0]):
                async with console.browser() as thief:
                    assert await thief.status("/", headers={"Cookie": f"__Host-pgrole={guess}"}) == 303


class TestLimits:
    async def test_a_viewer_beyond_the_limit_is_admitted_after_another_leaves(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MOST_VIEWERS", 3)
        accounts = Accounts(api_server)
        tokens = [await accounts.create(namespace) for _ in range(4)]
        async with run_test_console(**given) as console, AsyncExitStack() as stack:
            browsers = [await stack.enter_async_context(console.browser()) for _ in tokens]
            answers = [await browser.log_in(token) for browser, token in zip(browsers, tokens, strict=True)]
            assert answers == [303, 303, 303, 503]
            again = await stack.enter_async_context(console.browser())
            assert await again.log_in(tokens[0]) == 303  # the same viewer in another browser
            csrf = await browsers[1].form_token("/")
            assert await browsers[1].status("/logout", "POST", data={"csrf": csrf}) == 303
            assert await browsers[3].log_in(tokens[3]) == 303

    async def test_one_user_cannot_take_every_viewers_place(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MOST_VIEWERS", 3)
        monkeypatch.setattr(sessions, "MOST_OF_ONE_USER", 2)
        accounts = Accounts(api_server)
        greedy, other = [await accounts.create(namespace) for _ in range(2)]
        async with run_test_console(**given) as console, AsyncExitStack() as stack:
            mine = [await stack.enter_async_context(console.browser()) for _ in range(5)]
            for number, browser in enumerate(mine):
                assert await browser.log_in(greedy, f"namespace-{number}") == 303
            assert [await browser.status("/") for browser in mine] == [303, 303, 303, 200, 200]
            assert sessions.REPLACED in await mine[0].text("/login")
            another = await stack.enter_async_context(console.browser())
            assert await another.log_in(other) == 303

    async def test_a_viewers_oldest_session_ends_for_one_too_many_and_its_login_page_says_so(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
        token = await Accounts(api_server).create(namespace)
        async with run_test_console(**given) as console, AsyncExitStack() as stack:
            browsers = [await stack.enter_async_context(console.browser()) for _ in range(3)]
            for browser in browsers:
                assert await browser.log_in(token) == 303
            assert [await browser.status("/") for browser in browsers] == [303, 200, 200]
            assert sessions.REPLACED in await browsers[0].text("/login")

    async def test_the_login_page_tells_a_session_that_is_not_known_from_none(self, given: dict[str, Any]) -> None:
        async with run_test_console(**given) as console, console.browser() as new, console.browser() as known:
            assert "<p></p>" in await new.text("/login")
            headers = {"Cookie": "__Host-pgrole=of-a-console-before-its-restart"}
            assert sessions.FORGOTTEN in await known.text("/login", headers=headers)

    async def test_one_viewer_who_loads_many_pages_delays_no_other(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        accounts = Accounts(api_server)
        greedy, other = [await accounts.create(namespace) for _ in range(2)]
        goes_on, render, statuses = threading.Event(), PlainPages.render, list[int]()

        def slow(pages: PlainPages, question: PageQuestion, snapshot: Snapshot) -> Page:
            if question.path == "/slow":
                goes_on.wait(DEADLINE)
            return render(pages, question, snapshot)

        async def load() -> None:
            statuses.append(await one.status("/slow"))

        monkeypatch.setattr(viewer, "MOST_PAGES", 6)
        async with run_test_console(**given) as console, console.browser() as one, console.browser() as two:
            assert (await one.log_in(greedy), await two.log_in(other)) == (303, 303)
            await one.show()
            await two.show()
            monkeypatch.setattr(PlainPages, "render", slow)
            monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
            try:
                async with anyio.create_task_group() as tasks:
                    for _ in range(8):
                        tasks.start_soon(load)
                    with anyio.fail_after(DEADLINE / 2):
                        while len(statuses) < 2:  # noqa: ASYNC110 -- the two that are refused
                            await anyio.sleep(0.01)
                    with anyio.fail_after(DEADLINE / 2):
                        async with console.browser() as three:
                            assert await three.status("/login") == 200
                        await two.show()
                    goes_on.set()
            finally:
                goes_on.set()
            assert statuses == [429] * 2 + [200] * 6
            await one.show()

    def test_the_limits_are_20_viewers_and_8_hours(self) -> None:
        assert sessions.MOST_VIEWERS == 20
        assert sessions.LONGEST_SECONDS == 8 * 3600

    @pytest.mark.parametrize(
        "request_text",
        [
            "GET /?{long} HTTP/1.1\r\nHost: localhost\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {longest}\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\n{many}",
            "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            "Content-Length: 10000000\r\n",
        ],
    )
    async def test_oversized_requests_are_refused(self, given: dict[str, Any], request_text: str) -> None:
        text = request_text.format(
            long="x" * 4000, longest="x" * 30_000, many="".join(f"X-{n}: {n}\r\n" for n in range(5000))
        )
        body = b"token=" + b"x" * 100_000 if "Content-Length" in text else b""
        async with run_test_console(**given) as console:
            request = f"{text}Connection: close\r\n\r\n".encode() + body
            try:
                answer = await exchange(console.port, request)
            except ConnectionError:
                answer = b""
            async with console.browser() as browser:
                assert await browser.status("/login") == 200
        assert answer == b"" or answer.split()[1] in (b"400", b"403", b"413", b"431"), answer[:100]

    @pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
    async def test_a_client_that_sends_slowly_is_disconnected(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, sent: bytes
    ) -> None:
        monkeypatch.setattr(connections, "SILENT_SECONDS", 0.3)
        monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.1)
        async with run_test_console(**given) as console:
            reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
            writer.write(sent)
            with anyio.fail_after(DEADLINE):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()

    async def test_a_form_that_is_sent_too_slowly_times_out(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pgrole_controller.console.web_server.FORM_SECONDS", 0.3)
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        async with run_test_console(**given) as console:
            answer = await exchange(console.port, head + b"Content-Length: 100\r\nConnection: close\r\n\r\ncsrf=")
        assert answer.startswith(b"HTTP/1.1 408")

    async def test_an_idle_connection_gives_way_to_a_new_one(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
        async with run_test_console(**given) as console:
            held = [await asyncio.open_connection("127.0.0.1", console.port) for _ in range(4)]
            await anyio.sleep(0.1)
            for _ in range(3):
                answer = await exchange(console.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
            with anyio.fail_after(DEADLINE), suppress(ConnectionError):
                assert await held[0][0].read() == b""
            newest_reader, newest = held[-1]
            newest.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await newest_reader.readline()).startswith(b"HTTP/1.1 200")
            for _, one in held:
                one.close()

    async def test_a_connection_whose_form_is_incomplete_gives_way_to_a_new_one(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        async with run_test_console(**given) as console:
            held = [await asyncio.open_connection("127.0.0.1", console.port) for _ in range(4)]
            for _, one in held:
                one.write(head + b"Content-Length: 100\r\n\r\ncsrf=")
            await anyio.sleep(0.1)
            for _ in range(3):
                answer = await exchange(console.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
            for _, one in held:
                one.close()

    async def test_a_connection_in_use_does_not_give_way_to_a_new_one(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        await declare_role(api_server, namespace, "orders")
        async with logged_in(given, token, namespace) as (_, browser):
            await browser.show()
            async with browser.events() as events, browser.events():
                monkeypatch.setattr(connections, "MOST_CONNECTIONS", 2)
                reader, writer = await asyncio.open_connection("127.0.0.1", browser.console.port)
                second_reader, second = await asyncio.open_connection("127.0.0.1", browser.console.port)
                with anyio.fail_after(DEADLINE):
                    for one in (reader, second_reader):
                        with suppress(ConnectionError):
                            assert await one.read() == b""
                writer.close()
                second.close()
                await patch_role(api_server, namespace, "orders", {"connectionLimit": 9})
                assert f"role/{namespace}/orders" in await anext(events)

    async def test_the_console_stops_while_pages_are_open(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        scope, stopped = anyio.CancelScope(), anyio.Event()

        async def run(*, task_status: anyio.abc.TaskStatus[int]) -> None:
            with scope:
                await serve(console_arguments(**given), PlainPages(), lambda _: None, task_status=task_status)
            stopped.set()

        async with anyio.create_task_group() as tasks:
            console = RunningConsole(await tasks.start(run))
            async with console.browser() as browser:
                assert await browser.log_in(token, namespace) == 303
                async with browser.events():
                    scope.cancel()
                    with anyio.fail_after(DEADLINE):
                        await stopped.wait()

    async def test_the_number_of_streams_per_viewer_is_limited(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pgrole_controller.console.live.MOST_FEEDS", 2)
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        async with logged_in(given, token, namespace) as (_, browser):
            async with browser.events(), browser.events():
                assert await browser.status("/events") == 429
            with anyio.fail_after(DEADLINE):
                while await self._stream(browser) == 429:  # noqa: ASYNC110 - seen from outside only
                    await anyio.sleep(0.05)

    @staticmethod
    async def _stream(browser: Browser) -> int:
        async with browser.session.get("/events") as answer:
            return answer.status

    async def test_a_client_that_reads_nothing_delays_no_other(
        self, given: dict[str, Any], api_server: ApiServer, namespace: str
    ) -> None:
        token = await Accounts(api_server).create(namespace, sees=[namespace])
        await declare_role(api_server, namespace, "orders")
        async with logged_in(given, token, namespace) as (console, browser):
            cookie = (await cookies_of(browser))["__Host-pgrole"]
            slow = [await asyncio.open_connection("127.0.0.1", console.port) for _ in range(5)]
            for _, writer in slow:
                asks = f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: __Host-pgrole={cookie}\r\n\r\n"
                writer.write(asks.encode() * 200)
            await browser.show()
            async with browser.events() as events:
                await patch_role(api_server, namespace, "orders", {"connectionLimit": 9})
                assert f"role/{namespace}/orders" in await anext(events)
            for _, writer in slow:
                writer.close()
