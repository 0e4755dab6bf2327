"""A console for tests: the real server on a free port, with pages that print the data they receive."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any, Self

import aiohttp
import anyio

from pgrole_controller.console.console_arguments import ConsoleArguments
from pgrole_controller.console.console_command import serve
from pgrole_controller.console.snapshot import Page, PageQuestion, Snapshot
from pgrole_controller.local.apiserver import ApiServer, LocalApiError

DEADLINE = 40.0  # seconds
RBAC = "rbac.authorization.k8s.io"
CSRF = re.compile(r'name="csrf" value="([^"]*)"')


class PlainPages:
    """Pages as JSON in <main>: every object of the snapshot, and the CSRF token in a form."""

    static: Mapping[str, tuple[str, bytes]] = {"live.js": ("text/javascript", b"'use strict';")}

    def find_object(self, path: str) -> str | None:
        """Takes the path below /whole as the API path of an object."""
        return path.removeprefix("/whole") if path.startswith("/whole/") else None

    def render(self, question: PageQuestion, snapshot: Snapshot) -> Page:
        shown = {
            "path": question.path,
            "roles": {str(key): role["spec"] for key, role in snapshot.roles.items()},
            "servers": sorted(snapshot.servers),
            "servers_hidden": snapshot.servers_hidden,
            "namespaces": snapshot.namespaces,
            "connected": snapshot.connected,
            "accepted": snapshot.accepted,
            "reading": snapshot.reading,
            "cut": snapshot.cut,
            "viewer": snapshot.viewer,
            "version": snapshot.version,
            "fetched": None if question.fetched is None else (question.fetched.answer or b"").decode(),
            "problem": None if question.fetched is None else question.fetched.problem,
        }
        form = f'<input name="csrf" value="{question.csrf}">'
        return Page(200, f"<main>{json.dumps(shown)}</main>{'' if question.fragment else form}")

    def render_login(self, csrf: str, problem: str, page: str) -> str:
        form = f'<input name="csrf" value="{csrf}"><input name="page" value="{escape(page)}">'
        return f"<form>{form}</form><p>{problem}</p>"


def console_arguments(**given: Any) -> ConsoleArguments:
    defaults: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "auth": "token",
        "open": False,
        "hostnames": (),
        "trusted_proxies": (),
        "namespaces": (),
        "kubeconfig": None,
        "context": None,
        "api_server": None,
        "certificate_authority": None,
        "log_level": "debug",
    }
    return ConsoleArguments(**{**defaults, **given})


@dataclass(frozen=True, slots=True)
class RunningConsole:
    port: int
    announced: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def browser(self, **headers: str) -> AsyncIterator["Browser"]:
        """A client with cookies of its own; it sends Secure cookies over loopback, as browsers do."""
        jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=self.url)
        async with aiohttp.ClientSession(self.url, cookie_jar=jar, headers=headers) as session:
            yield Browser(self, session)


@dataclass(frozen=True, slots=True)
class Browser:
    console: RunningConsole
    session: aiohttp.ClientSession

    async def form_token(self, path: str = "/login") -> str:
        async with self.session.get(path) as answer:
            found = CSRF.search(await answer.text())
            assert found is not None, answer.status
            return found[1]

    async def next_page(self, path: str, data: Mapping[str, str] | None = None) -> str:
        """Returns where the console redirects to; `data`: those of a form."""
        async with self.session.request("POST" if data else "GET", path, data=data, allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()
            return answer.headers["Location"]

    async def log_in(self, token: str, namespaces: str = "") -> int:
        """Returns the status of the answer to the form."""
        data = {"csrf": await self.form_token(), "token": token, "namespaces": namespaces}
        async with self.session.post("/login", data=data, allow_redirects=False) as answer:
            return answer.status

    async def show(self, path: str = "/", **headers: str) -> dict[str, Any]:
        """Returns what the page shows. Raises AssertionError if the answer is not a page."""
        async with self.session.get(path, headers=headers, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == 200, (answer.status, text)
            shown: dict[str, Any] = json.loads(text.partition("<main>")[2].partition("</main>")[0])
            return shown

    async def status(self, path: str = "/", method: str = "GET", **given: Any) -> int:
        async with self.session.request(method, path, allow_redirects=False, **given) as answer:
            return answer.status

    async def text(self, path: str, **given: Any) -> str:
        async with self.session.get(path, allow_redirects=False, **given) as answer:
            return await answer.text()

    @asynccontextmanager
    async def events(self, since: int | None = None) -> AsyncIterator["EventLines"]:
        path = "/events" if since is None else f"/events?since={since}"
        async with self.session.get(path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            assert answer.status == 200, answer.status
            yield EventLines(answer)


@dataclass(frozen=True, slots=True)
class EventLines:
    """The names that server-sent events report; ends when the console ends the stream."""

    answer: aiohttp.ClientResponse

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[str]:
        with anyio.fail_after(DEADLINE):
            async for line in self.answer.content:
                if line.startswith(b"data: "):
                    names: list[str] = json.loads(line[6:])
                    return names
        raise StopAsyncIteration


@asynccontextmanager
async def run_test_console(**given: Any) -> AsyncIterator[RunningConsole]:
    """Arguments as in `ConsoleArguments`."""
    announced: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def start(*, task_status: anyio.abc.TaskStatus[int]) -> None:
            await serve(console_arguments(**given), PlainPages(), announced.append, task_status=task_status)

        yield RunningConsole(await tasks.start(start), announced)
        tasks.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Accounts:
    """ServiceAccounts as viewers. Each may list only what its Role allows."""

    server: ApiServer

    async def create(
        self,
        namespace: str,
        *,
        sees: Sequence[str] = (),
        lists: Sequence[str] = (),
        everything: bool = False,
        name: str | None = None,
    ) -> str:
        """Creates an account in `namespace` that may list and watch PgRoles in the namespaces `sees`, and only get and
        list them in `lists`; returns its token.
        """
        account = name or f"viewer-{secrets.token_hex(3)}"
        await self._post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        )
        for place in sees:
            await self._grant(place, namespace, account, ["pgroles"])
        for place in lists:
            await self._grant(place, namespace, account, ["pgroles"], ["get", "list"])
        if everything:
            await self._grant(None, namespace, account, ["pgroles", "pgservers"])
        return self.server.token_of(await self.server.admit(namespace, account))

    async def delete(self, namespace: str, name: str) -> None:
        """Deletes an account, which invalidates its tokens."""
        await self.server.request("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")

    async def revoke(self, place: str, account: str) -> None:
        path = f"/apis/{RBAC}/v1/namespaces/{place}/rolebindings/{account}"
        await self.server.request("DELETE", path)

    async def _grant(
        self,
        place: str | None,
        namespace: str,
        account: str,
        resources: Sequence[str],
        verbs: Sequence[str] = ("get", "list", "watch"),
    ) -> None:
        rules = [{"apiGroups": ["pgrole.dev"], "resources": list(resources), "verbs": list(verbs)}]
        await self._post_rbac(place, "Role", account, {"rules": rules})
        await self.bind(place, namespace, account)

    async def bind(self, place: str | None, namespace: str, account: str) -> None:
        """Grants what the account's Role in `place` allows; again, after `revoke`."""
        role = {"apiGroup": RBAC, "kind": "ClusterRole" if place is None else "Role", "name": account}
        subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        await self._post_rbac(place, "RoleBinding", account, {"roleRef": role, "subjects": subjects})

    async def _post_rbac(self, place: str | None, kind: str, name: str, content: dict[str, Any]) -> None:
        """`place`: None means the whole cluster."""
        kind = f"Cluster{kind}" if place is None else kind
        path = f"/apis/{RBAC}/v1/{'' if place is None else f'namespaces/{place}/'}{kind.lower()}s"
        await self._post(path, {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name}, **content})

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        await self.server.request("POST", path, body)


async def declare_role(server: ApiServer, namespace: str, name: str, **spec: Any) -> None:
    body = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {"name": name},
        "spec": {"name": f"{namespace}_{name}".replace("-", "_"), "serverRef": {"name": "main"}, **spec},
    }
    await server.request("POST", f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles", body)


async def patch_role(server: ApiServer, namespace: str, name: str, spec: dict[str, Any]) -> None:
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles/{name}"
    obj = await server.request("GET", path)
    obj["spec"].update(spec)
    await server.request("PUT", path, obj)


__all__ = [
    "Accounts",
    "Browser",
    "LocalApiError",
    "RunningConsole",
    "console_arguments",
    "declare_role",
    "patch_role",
    "run_test_console",
]
