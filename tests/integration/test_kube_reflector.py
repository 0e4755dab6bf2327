"""The reflector against the real API server and the fake (one contract), then what only the fake can do."""

import copy
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from aiohttp import web

from pgrole_controller import event_loop, metrics
from pgrole_controller.core.request import Key
from pgrole_controller.kube import listing
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import AnswerTooLong, ApiError, Unreachable
from pgrole_controller.kube.listing import list_objects
from pgrole_controller.kube.reflector import WatchTiming, reflect
from pgrole_controller.kube.resource import MERGE_PATCH, SECRETS, Resource
from pgrole_controller.kube.secrets import read_secret, stored_of
from pgrole_controller.kube.server_side_apply import apply_status
from pgrole_controller.kube.store import Store, StoreChange
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.kubeconfig import write_kubeconfig
from tests.fake_apiserver import (
    WIDGETS,
    ApiFault,
    FakeApiServer,
    define_widgets,
    freeze,
    make_namespace,
    make_widget,
    plain,
    refuse,
    say,
    status_body,
)

QUICK = WatchTiming(backoff_first=0.02, backoff_most=0.05, short=0.5, inactivity=30.0, page=3)
DEADLINE = 60.0


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits for what the reflector does in the background."""
    with anyio.move_on_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what is waited for is seen from outside only
            await anyio.sleep(0.005)
        return
    pytest.fail(f"not within {DEADLINE} s: {what}")


class Followed:
    """A reflector that runs in `tasks`, and the changes it reported."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        client: Client,
        namespace: str | None = None,
        timing: WatchTiming = QUICK,
        resource: Resource = WIDGETS,
        metadata_only: bool = False,
    ) -> None:
        self.store = Store()
        self.changes: list[StoreChange] = []

        async def run() -> None:
            await reflect(
                client,
                resource,
                self.store,
                self.changes.append,
                namespace=namespace,
                metadata_only=metadata_only,
                timing=timing,
            )

        tasks.start_soon(run)

    @property
    def said(self) -> list[tuple[str, bool, bool]]:
        """Returns for each change: the name, whether there was an old object, whether there is a new one."""
        return [(c.key.name, c.old is not None, c.new is not None) for c in self.changes]

    async def synced(self) -> None:
        with anyio.fail_after(DEADLINE):
            await self.store.synced.wait()

    async def saw(self, *said: tuple[str, bool, bool]) -> None:
        await until(lambda: set(said) <= set(self.said), f"{said} in {self.said}")


APPEARED, CHANGED, GONE = (False, True), (True, True), (True, False)


@pytest.fixture(scope="module")
async def own_server(binaries: Binaries) -> AsyncIterator[ApiServer]:
    """An API server that these tests may kill and freeze."""
    async with run_api_server(binaries=binaries) as server:
        async with Client.connect(str(server.kubeconfig)) as client:
            await define_widgets(client)
        yield server


@pytest.fixture(scope="module")
async def real(own_server: ApiServer) -> Path:
    return own_server.kubeconfig


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    server = FakeApiServer()
    async with server.serve(tmp_path / "kubeconfig"):
        yield server


@pytest.fixture
async def faked(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with Client.connect(str(tmp_path / "kubeconfig")) as client:
        yield client


@pytest.fixture(params=["real", "fake"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The kubeconfig of the real API server, then of the fake."""
    if request.param == "real":
        return Path(request.getfixturevalue("real"))
    request.getfixturevalue("fake")
    return tmp_path / "kubeconfig"


async def test_existing_objects_are_listed_and_each_later_change_is_reported_once(either: Path) -> None:
    async with Client.connect(str(either)) as client:
        namespace = await make_namespace(client)
        for number in range(8):  # three pages
            await make_widget(client, namespace, f"w{number}", size=number)
        async with anyio.create_task_group() as tasks:
            followed = Followed(tasks, client, namespace)
            await followed.synced()
            assert sorted(followed.said) == [(f"w{n}", *APPEARED) for n in range(8)]
            followed.changes.clear()

            await make_widget(client, namespace, "new", size=1)
            await client.request(
                "PATCH",
                WIDGETS.path(namespace, "new"),
                body={"spec": {"size": 2}},
                content_type=MERGE_PATCH,
            )
            await client.request("DELETE", WIDGETS.path(namespace, "new"))
            await client.request("DELETE", WIDGETS.path(namespace, "w0"))
            await followed.saw(("w0", *GONE))

            assert followed.said == [("new", *APPEARED), ("new", *CHANGED), ("new", *GONE), ("w0", *GONE)]
            changed = followed.changes[1]
            assert changed.old is not None
            assert changed.new is not None
            assert changed.old.uid == changed.new.uid
            assert changed.new.object()["spec"] == {"size": 2}
            assert changed.new.object()["kind"] == "Widget"
            with pytest.raises(ApiError) as refused:
                await client.request("GET", WIDGETS.path(namespace, "new"))
            assert (refused.value.status, refused.value.reason) == (404, "NotFound")
            tasks.cancel_scope.cancel()


async def test_a_merge_patch_changes_only_what_it_names(either: Path) -> None:
    async with Client.connect(str(either)) as client:
        namespace = await make_namespace(client)
        await make_widget(client, namespace, "w", size=1, parts={"left": 1, "right": 2})
        patch = {"spec": {"parts": {"left": None, "top": 3}}}
        path = WIDGETS.path(namespace, "w")
        answer = json.loads(await client.request("PATCH", path, body=patch, content_type=MERGE_PATCH))
        assert answer["spec"] == {"size": 1, "parts": {"right": 2, "top": 3}}
        assert json.loads(await client.request("GET", path)) == answer


async def test_writes_of_what_exists_already_or_not_at_all_are_refused(either: Path) -> None:
    async with Client.connect(str(either)) as client:
        namespace = await make_namespace(client)
        await make_widget(client, namespace, "w")
        with pytest.raises(ApiError) as refused:
            await make_widget(client, namespace, "w")
        assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
        for method in ("PATCH", "DELETE"):
            body: dict[str, Any] | None = {} if method == "PATCH" else None
            with pytest.raises(ApiError) as refused:
                await client.request(method, WIDGETS.path(namespace, "x"), body=body, content_type=MERGE_PATCH)
            assert (refused.value.status, refused.value.reason) == (404, "NotFound")


async def test_a_restart_of_the_api_server_loses_and_repeats_no_change(own_server: ApiServer, real: Path) -> None:
    async with Client.connect(str(real)) as client, anyio.create_task_group() as tasks:
        namespace = await make_namespace(client)
        await make_widget(client, namespace, "before")
        followed = Followed(tasks, client, namespace)
        await followed.saw(("before", *APPEARED))
        await own_server.kill()
        await own_server.start()
        await make_widget(client, namespace, "after")
        await client.request("DELETE", WIDGETS.path(namespace, "before"))
        await followed.saw(("before", *GONE))
        await followed.saw(("after", *APPEARED))
        assert sorted(followed.said) == [("after", *APPEARED), ("before", *APPEARED), ("before", *GONE)]
        tasks.cancel_scope.cancel()


async def test_the_reflector_leaves_a_frozen_api_server_and_reconnects_later(own_server: ApiServer, real: Path) -> None:
    timing = WatchTiming(backoff_first=0.05, backoff_most=0.1, inactivity=1.0, list_timeout=2.0)
    async with Client.connect(str(real)) as client, anyio.create_task_group() as tasks:
        namespace = await make_namespace(client)
        followed = Followed(tasks, client, namespace, timing)
        await followed.synced()
        own_server.pause()
        try:
            with pytest.raises(Unreachable):
                await client.request("GET", WIDGETS.path(namespace), timeout=1.5)
        finally:
            own_server.resume()
        await make_widget(client, namespace, "after")
        await followed.saw(("after", *APPEARED))
        tasks.cancel_scope.cancel()


async def test_our_own_write_put_into_the_store_is_not_reported_again(real: Path) -> None:
    async with Client.connect(str(real)) as client, anyio.create_task_group() as tasks:
        namespace = await make_namespace(client)
        await make_widget(client, namespace, "a")
        followed = Followed(tasks, client, namespace)
        await followed.saw(("a", *APPEARED))
        stored = followed.store.get(Key(namespace, "a"))
        assert stored is not None
        followed.store.put(await apply_status(client, WIDGETS, stored, {"seen": True}))
        await make_widget(client, namespace, "b")
        await followed.saw(("b", *APPEARED))
        assert [name for name, *_ in followed.said].count("a") <= 2
        assert (await current(followed, namespace, "a"))["status"] == {"seen": True}
        tasks.cancel_scope.cancel()


async def current(followed: Followed, namespace: str, name: str) -> dict[str, Any]:
    stored = followed.store.get(Key(namespace, name))
    assert stored is not None
    return stored.object()


async def test_a_list_after_an_expired_version_reports_deleted_and_recreated_objects(
    fake: FakeApiServer, faked: Client
) -> None:
    fake.put("shop", "kept")
    fake.put("shop", "gone")
    fake.put("shop", "again")
    async with anyio.create_task_group() as tasks:
        fake.faults["watch"].append(say())
        followed = Followed(tasks, faked)
        await followed.synced()
        fake.faults["watch"].append(refuse(410, "Expired"))
        fake.delete("shop", "gone")
        fake.delete("shop", "again")
        fake.put("shop", "again")
        fake.history.clear()
        await followed.saw(("gone", *GONE), ("again", *CHANGED))
        assert followed.said[3:] == [("gone", *GONE), ("again", *CHANGED)]
        assert fake.count("list") == 2
        again = followed.changes[-1]
        assert again.old is not None
        assert again.new is not None
        assert again.old.uid != again.new.uid
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("at_first", [True, False], ids=["listed", "watched"])
async def test_prepare_runs_once_before_the_first_object_is_stored(
    fake: FakeApiServer, faked: Client, at_first: bool
) -> None:
    store, prepared = Store(), list[int]()

    async def prepare() -> None:
        await anyio.lowlevel.checkpoint()
        prepared.append(len(store))

    async def run() -> None:
        await reflect(faked, WIDGETS, store, lambda _: None, prepare=prepare, timing=QUICK)

    if at_first:
        fake.put("shop", "a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: fake.count("watch") == 1, "a watch")
        assert prepared == [0] * at_first
        fake.put("shop", "b")
        await until(lambda: store.get(Key("shop", "b")), "what was watched")
        fake.put("shop", "c")
        await until(lambda: store.get(Key("shop", "c")), "what was watched next")
        assert prepared == [0]
        tasks.cancel_scope.cancel()


async def test_an_expiry_sent_as_an_event_leads_to_a_list(fake: FakeApiServer, faked: Client) -> None:
    error = {"type": "ERROR", "object": status_body(410, "Expired", "too old resource version")}
    fake.faults["watch"].append(say(json.dumps(error).encode() + b"\n"))
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("list") == 2, "a second list")
        fake.put("shop", "a")
        await followed.saw(("a", *APPEARED))
        tasks.cancel_scope.cancel()


async def test_a_server_that_always_answers_expired_is_not_asked_in_a_tight_loop(
    fake: FakeApiServer, faked: Client
) -> None:
    fake.always["watch"] = refuse(410, "Expired")
    await asked_seldom(fake, faked)


async def asked_seldom(fake: FakeApiServer, client: Client) -> None:
    """With waits of at least 0.1 s, at most ten rounds fit into a second."""
    timing = WatchTiming(backoff_first=0.2, backoff_most=0.2, short=5.0)
    async with anyio.create_task_group() as tasks:
        Followed(tasks, client, timing=timing)
        await until(lambda: fake.count("watch") >= 4, "four watches")
        before, started = fake.count("watch"), time.monotonic()
        await until(lambda: fake.count("watch") >= before + 5, "five more")
        assert time.monotonic() - started >= 0.4
        tasks.cancel_scope.cancel()


async def test_an_empty_watch_is_not_repeated_in_a_tight_loop(fake: FakeApiServer, faked: Client) -> None:
    fake.always["watch"] = say()
    await asked_seldom(fake, faked)
    assert fake.count("list") == 1


async def test_the_watch_waits_for_retry_after_and_continues_without_a_list(fake: FakeApiServer, faked: Client) -> None:
    fake.faults["watch"].append(refuse(429, "TooManyRequests", {"Retry-After": "2"}))
    async with anyio.create_task_group() as tasks:
        before = time.monotonic()
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("watch") == 2, "the next watch")
        assert time.monotonic() - before >= 2.0
        fake.put("shop", "a")
        await followed.saw(("a", *APPEARED))
        assert fake.count("list") == 1
        tasks.cancel_scope.cancel()


EVENT = {"type": "ADDED", "object": {"metadata": {"name": "a", "namespace": "shop", "uid": "u"}}}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(refuse(500, "InternalError"), id="500"),
        pytest.param(plain(503, "upstream connect error"), id="503 of a proxy"),
        pytest.param(plain(200, "Too many requests, please try again later.\n"), id="plain text"),
        pytest.param(say(b'{"type": "ADDED", "obj'), id="truncated"),
        pytest.param(say(b"[1]\n"), id="no object"),
        pytest.param(say(b'{"type": "ADDED", "object": 7}\n'), id="no metadata"),
        pytest.param(say(b'{"type": "ADDED", "object": {"metadata": [1]}}\n'), id="metadata is a list"),
        pytest.param(say(b'{"type": "ERROR", "object": {"details": {"retryAfterSeconds": NaN}}}\n'), id="NaN"),
        pytest.param(
            say(b'{"type": "DELETED", "object": {"metadata": {"name": "a", "uid": [], "resourceVersion": "900"}}}\n'),
            id="uid is a list",
        ),
        pytest.param(
            say(b'{"type": "ADDED", "object": {"metadata": {"name": 7, "uid": "u", "resourceVersion": "900"}}}\n'),
            id="name is a number",
        ),
        pytest.param(say(json.dumps(EVENT).encode() + b"\n"), id="no version"),
        pytest.param(say(b'{"type": "PARTED", "object": {}}\n'), id="unknown type"),
        pytest.param(say(b"\xff\xfe\n"), id="not text"),
    ],
)
async def test_after_an_invalid_answer_the_watch_continues_from_the_last_version(
    fake: FakeApiServer, faked: Client, fault: ApiFault
) -> None:
    fake.put("shop", "a")
    fake.faults["watch"].append(fault)
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("watch") == 2, "the next watch")
        fake.put("shop", "b")
        await followed.saw(("b", *APPEARED))
        assert followed.said == [("a", *APPEARED), ("b", *APPEARED)]
        assert fake.count("list") == 1
        tasks.cancel_scope.cancel()


def ends(cause: str) -> float:
    """How many watches on WIDGETS ended so."""
    labels = {"resource": WIDGETS.plural, "cause": cause}
    return metrics.REGISTRY.get_sample_value("pgrole_watch_ends_total", labels) or 0.0


@pytest.mark.parametrize("headers", [False, True])
async def test_a_half_open_connection_is_abandoned_after_the_inactivity_limit(
    fake: FakeApiServer, faked: Client, caplog: pytest.LogCaptureFixture, headers: bool
) -> None:
    """Before the headers, that is a failure. After them, it may be a quiet resource, which is no news."""
    fake.faults["watch"].append(freeze(headers=headers))
    timing = WatchTiming(inactivity=0.3, backoff_first=0.02, backoff_most=0.05)
    before = ends("silent" if headers else "failed")
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=timing)
        await until(lambda: fake.count("watch") >= 2, "another watch")
        fake.put("shop", "a")
        await followed.saw(("a", *APPEARED))
        assert fake.count("list") == 1
        tasks.cancel_scope.cancel()
    assert ends("silent" if headers else "failed") > before
    assert [one.levelname for one in caplog.records if one.levelno > logging.INFO] == ([] if headers else ["WARNING"])


async def test_a_line_of_five_mebibytes_is_accepted(fake: FakeApiServer, faked: Client) -> None:
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("watch") == 1, "a watch")
        fake.put("shop", "big", spec={"text": "x" * (5 * 2**20)})
        await followed.saw(("big", *APPEARED))
        assert len((await current(followed, "shop", "big"))["spec"]["text"]) == 5 * 2**20
        tasks.cancel_scope.cancel()


async def test_a_line_beyond_the_limit_leads_to_a_list(fake: FakeApiServer, faked: Client) -> None:
    timing = WatchTiming(backoff_first=0.02, backoff_most=0.05, line_limit=10_000)
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=timing)
        await until(lambda: fake.count("watch") == 1, "a watch")
        fake.put("shop", "big", spec={"text": "x" * 20_000})
        await followed.saw(("big", *APPEARED))
        assert fake.count("list") == 2
        tasks.cancel_scope.cancel()


async def test_an_expired_continue_token_leads_to_one_list_without_pages(fake: FakeApiServer, faked: Client) -> None:
    for number in range(7):
        fake.put("shop", f"w{number}")

    async def first(request: Any) -> Any:
        fake.faults["list"].append(refuse(410, "Expired"))
        return fake._list(request)

    fake.faults["list"].append(first)
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await followed.synced()
        assert len(followed.store) == 7
        lists = [dict(r.query) for r in fake.requests if "watch" not in r.query]
        assert lists == [{"limit": "3"}, {"limit": "3", "continue": "3"}, {}]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "fault", [plain(200, "<html>"), plain(200, "{}"), say(b'{"metadata":{"resourceVersion":"7"},"items":[1]}')]
)
async def test_an_invalid_list_does_not_sync_the_store(fake: FakeApiServer, faked: Client, fault: ApiFault) -> None:
    fake.put("shop", "a")
    fake.always["list"] = fault
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("list") >= 3, "three lists")
        assert not followed.store.synced.is_set()
        del fake.always["list"]
        await followed.saw(("a", *APPEARED))
        tasks.cancel_scope.cancel()


async def test_a_list_that_is_refused_later_leaves_the_store_unchanged(fake: FakeApiServer, faked: Client) -> None:
    fake.put("shop", "a")
    fake.faults["watch"].append(refuse(404, "NotFound"))
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await followed.synced()
        fake.always["list"] = refuse(403, "Forbidden")
        await until(lambda: fake.count("list") >= 3, "three lists")
        assert followed.said == [("a", *APPEARED)]
        del fake.always["list"]
        fake.put("shop", "b")
        await followed.saw(("b", *APPEARED))
        tasks.cancel_scope.cancel()


async def test_versions_that_go_backwards_lead_to_a_list(fake: FakeApiServer, faked: Client) -> None:
    fake.put("shop", "a")
    old = {"type": "BOOKMARK", "object": {"kind": "Widget", "metadata": {"resourceVersion": "5"}}}
    fake.faults["watch"].append(say(json.dumps(old).encode() + b"\n"))
    async with anyio.create_task_group() as tasks:
        Followed(tasks, faked)
        await until(lambda: fake.count("list") == 2, "a second list")
        tasks.cancel_scope.cancel()


async def test_the_next_watch_continues_from_the_version_of_a_bookmark(fake: FakeApiServer, faked: Client) -> None:
    mark = {"type": "BOOKMARK", "object": {"kind": "Widget", "metadata": {"resourceVersion": "250"}}}
    fake.faults["watch"].append(say(json.dumps(mark).encode() + b"\n"))
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("watch") == 2, "the next watch")
        assert fake.requests[-1].query["resourceVersion"] == "250"
        assert fake.requests[-1].query["allowWatchBookmarks"] == "true"
        assert 300 <= int(fake.requests[-1].query["timeoutSeconds"]) <= 600
        assert followed.changes == []
        tasks.cancel_scope.cancel()


async def test_a_refusal_in_plain_text_is_an_error_with_its_text(fake: FakeApiServer, faked: Client) -> None:
    fake.faults["list"].append(plain(429, "slow down"))
    with pytest.raises(ApiError) as refused:
        await faked.request("GET", WIDGETS.path())
    assert (refused.value.status, refused.value.reason, refused.value.message) == (
        429,
        "TooManyRequests",
        "slow down",
    )


async def test_a_server_that_does_not_listen_is_unreachable(tmp_path: Path) -> None:
    gone = FakeApiServer()
    async with gone.serve(tmp_path / "kubeconfig"):
        pass
    async with Client.connect(str(tmp_path / "kubeconfig")) as client:
        with pytest.raises(Unreachable, match=r"GET .*widgets: "):
            await client.request("GET", WIDGETS.path())


SHOWN = b"c2hvd24tbm93aGVyZQ=="


async def make_secret(client: Client, namespace: str, name: str, **metadata: object) -> dict[str, Any]:
    body = {"metadata": {"name": name, **metadata}, "data": {"password": SHOWN.decode()}}
    made: dict[str, Any] = json.loads(await client.request("POST", SECRETS.path(namespace), body=body))
    return made


async def relabel(client: Client, namespace: str, name: str, label: str) -> None:
    body = {"metadata": {"labels": {"changed": label}}}
    await client.request("PATCH", SECRETS.path(namespace, name), body=body, content_type=MERGE_PATCH)


OWNER = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "app", "uid": "u-1"}


async def test_only_the_ownership_metadata_of_secrets_is_read_and_kept(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    async with Client.connect(str(api_server.kubeconfig)) as client, anyio.create_task_group() as tasks:
        request = client.request

        async def listen(*given: Any, **named: Any) -> bytes:
            heard.append(await request(*given, **named))
            return heard[-1]

        for number in range(5):  # two pages
            await make_secret(client, namespace, f"s{number}", labels={"team": "shop"})
        monkeypatch.setattr(client, "request", listen)
        followed = Followed(tasks, client, namespace, resource=SECRETS, metadata_only=True)
        await followed.synced()
        monkeypatch.undo()
        await make_secret(
            client,
            namespace,
            "ours",
            annotations={
                "pgrole.dev/hash": "h",
                "team": "shop",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            ownerReferences=[OWNER],
            finalizers=["example.dev/held"],
        )
        await relabel(client, namespace, "s0", "yes")
        await client.request("DELETE", SECRETS.path(namespace, "s1"))
        await client.request("DELETE", SECRETS.path(namespace, "ours"))
        await followed.saw(("ours", *CHANGED))

        assert len(heard) == 2
        assert not any(SHOWN in page for page in heard)
        assert followed.said[5:] == [("ours", *APPEARED), ("s0", *CHANGED), ("s1", *GONE), ("ours", *CHANGED)]
        assert await current(followed, namespace, "s0") == {"metadata": {}}
        ours = (await current(followed, namespace, "ours"))["metadata"]
        assert ours.pop("deletionTimestamp")
        assert ours == {"annotations": {"pgrole.dev/hash": "h"}, "ownerReferences": [OWNER]}
        tasks.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_restart_of_the_api_server_loses_and_repeats_no_secret(own_server: ApiServer, real: Path) -> None:
    async with Client.connect(str(real)) as client, anyio.create_task_group() as tasks:
        namespace = await make_namespace(client)
        await make_secret(client, namespace, "before")
        followed = Followed(tasks, client, namespace, resource=SECRETS, metadata_only=True)
        await followed.saw(("before", *APPEARED))
        await own_server.kill()
        await own_server.start()
        await make_secret(client, namespace, "after")
        await client.request("DELETE", SECRETS.path(namespace, "before"))
        await followed.saw(("before", *GONE))
        assert sorted(followed.said) == [("after", *APPEARED), ("before", *APPEARED), ("before", *GONE)]
        tasks.cancel_scope.cancel()


async def test_a_secret_read_and_put_into_the_store_is_not_reported_again(
    api_server: ApiServer, namespace: str
) -> None:
    async with Client.connect(str(api_server.kubeconfig)) as client, anyio.create_task_group() as tasks:
        followed = Followed(tasks, client, namespace, resource=SECRETS, metadata_only=True)
        await followed.synced()
        await make_secret(client, namespace, "a", annotations={"pgrole.dev/hash": "h"}, ownerReferences=[OWNER])
        await followed.saw(("a", *APPEARED))
        secret = await read_secret(client, Key(namespace, "a"))
        assert secret is not None
        assert stored_of(secret) == followed.store.get(secret.key)
        await relabel(client, namespace, "a", "yes")
        secret = await read_secret(client, secret.key)
        assert secret is not None
        followed.store.put(stored_of(secret))
        await make_secret(client, namespace, "b")
        await followed.saw(("b", *APPEARED))
        assert [name for name, *_ in followed.said].count("a") <= 2
        assert followed.store.get(secret.key) == stored_of(secret)
        tasks.cancel_scope.cancel()


async def make_reader(client: Client, server: ApiServer, namespace: str, folder: Path) -> Path:
    """Creates a service account without permissions in the namespace; returns its kubeconfig."""
    path = Resource("", "v1", "serviceaccounts").path
    await client.request("POST", path(namespace), body={"metadata": {"name": "reader"}})
    answer = await client.request("POST", path(namespace, "reader", "token"), body={"spec": {}})
    token = json.loads(answer)["status"]["token"]
    return write_kubeconfig(folder / "reader", url=server.url, ca=server.ca, user="reader", token=token)


async def allow(client: Client, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]}]
    group = "rbac.authorization.k8s.io"
    await client.request(
        "POST", Resource(group, "v1", "roles").path(namespace), body={"metadata": {"name": "reader"}, "rules": rules}
    )
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    await client.request("POST", Resource(group, "v1", "rolebindings").path(namespace), body=binding)


async def test_a_forbidden_list_is_reported_until_it_is_allowed(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    async with Client.connect(str(api_server.kubeconfig)) as admin:
        await make_secret(admin, namespace, "a")
        reader = await make_reader(admin, api_server, namespace, tmp_path)
        async with Client.connect(str(reader)) as client, anyio.create_task_group() as tasks:
            followed = Followed(tasks, client, namespace, resource=SECRETS, metadata_only=True)
            await until(lambda: followed.store.refused, "a refusal")
            refused = followed.store.refused or ""
            assert refused.startswith("403 Forbidden: secrets is forbidden")
            assert 'cannot list resource "secrets"' in refused
            assert not followed.store.synced.is_set()
            await allow(admin, namespace)
            await until(lambda: followed.store.refused is None, "no refusal")
            assert followed.said == [("a", *APPEARED)]
            tasks.cancel_scope.cancel()


async def test_a_refused_list_is_not_repeated_in_a_tight_loop(fake: FakeApiServer, faked: Client) -> None:
    fake.always["list"] = refuse(403, "Forbidden")
    timing = WatchTiming(backoff_first=0.2, backoff_most=0.2)
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=timing)
        await until(lambda: fake.count("list") >= 1, "a list")
        before, started = fake.count("list"), time.monotonic()
        await until(lambda: fake.count("list") >= before + 5, "five more")
        assert time.monotonic() - started >= 0.4
        assert followed.store.refused == "403 Forbidden: on purpose"
        tasks.cancel_scope.cancel()


async def test_a_forbidden_watch_is_reported_until_it_is_allowed(fake: FakeApiServer, faked: Client) -> None:
    async with anyio.create_task_group() as tasks:
        fake.always["watch"] = refuse(403, "Forbidden")
        followed = Followed(tasks, faked, timing=replace(QUICK, denied=0.3))
        await until(lambda: followed.store.refused, "a refusal")
        assert fake.count("list") >= 3
        assert followed.store.refused == "403 Forbidden: on purpose"
        del fake.always["watch"]
        await until(lambda: followed.store.refused is None, "no refusal")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_starts_and_refuses_everyone_is_not_reported_as_a_refusal(
    fake: FakeApiServer, faked: Client, status: int
) -> None:
    """It has not read its RBAC rules. What was doubted meanwhile is not refused either."""
    fake.always["watch"] = refuse(status, "Forbidden")
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await followed.synced()
        fake.always["list"] = refuse(status, "Forbidden")
        followed.store.doubt()
        await until(lambda: fake.count("list") >= 4, "refused lists")
        assert followed.store.refused is None
        fake.always.clear()
        await followed.synced()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("fault", [refuse(429, "TooManyRequests"), refuse(503, "ServiceUnavailable"), plain(200, "<")])
async def test_a_busy_server_is_not_reported_as_a_refusal(fake: FakeApiServer, faked: Client, fault: ApiFault) -> None:
    fake.always["list"] = fault
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await until(lambda: fake.count("list") >= 3, "three lists")
        assert followed.store.refused is None
        tasks.cancel_scope.cancel()


@pytest.fixture
async def secretive(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    """A server that sends the content of its Secrets, whatever form is requested."""
    server = FakeApiServer(SECRETS)
    async with server.serve(tmp_path / "kubeconfig"):
        yield server


async def test_secret_content_that_a_server_sends_unasked_is_neither_kept_nor_logged(
    secretive: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"data": {"password": SHOWN.decode()}, "stringData": {"password": SHOWN.decode()}}
    secretive.put("shop", "a", **content)
    torn = b'{"type": "ADDED", "object": {"data": {"password": "' + SHOWN
    for fault in (
        say(torn + b"\n"),
        say(torn + b'"}}}\n'),
        say(torn + b'"}, "metadata": {"resourceVersion": "1"}}}\n'),
    ):
        secretive.faults["watch"].append(fault)
    async with Client.connect(str(tmp_path / "kubeconfig")) as client, anyio.create_task_group() as tasks:
        followed = Followed(tasks, client, resource=SECRETS, metadata_only=True)
        await until(lambda: secretive.count("watch") >= 4, "the next watch")
        secretive.put("shop", "b", **content)
        await followed.saw(("a", *APPEARED), ("b", *APPEARED))
        for name in "ab":
            assert await current(followed, "shop", name) == {"metadata": {}}
        assert SHOWN.decode() not in "".join(str(vars(record)) for record in caplog.records)
        tasks.cancel_scope.cancel()


async def test_every_list_and_watch_of_secrets_requests_only_their_metadata(
    secretive: FakeApiServer, tmp_path: Path
) -> None:
    error = {"type": "ERROR", "object": status_body(410, "Expired", "too old resource version")}
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "250"}}}
    secretive.faults["watch"].append(say(json.dumps(mark).encode() + b"\n"))
    secretive.faults["watch"].append(say(json.dumps(error).encode() + b"\n"))
    async with Client.connect(str(tmp_path / "kubeconfig")) as client, anyio.create_task_group() as tasks:
        followed = Followed(tasks, client, resource=SECRETS, metadata_only=True)
        await until(lambda: secretive.count("watch") == 3, "the third watch")
        secretive.put("shop", "a")
        await followed.saw(("a", *APPEARED))
        forms = ["PartialObjectMetadata" + ("" if "watch" in one.query else "List") for one in secretive.requests]
        assert forms == [f"PartialObjectMetadata{ending}" for ending in ("List", "", "", "List", "")]
        assert [one.headers["Accept"] for one in secretive.requests] == [
            f"application/json;as={form};g=meta.k8s.io;v=v1" for form in forms
        ]
        assert secretive.requests[2].query["resourceVersion"] == "250"
        tasks.cancel_scope.cancel()


async def test_a_list_that_is_too_long_is_requested_in_smaller_pages(fake: FakeApiServer, faked: Client) -> None:
    for number in range(12):
        fake.put("shop", f"w{number}", spec={"text": "x" * 10_000})
    timing = WatchTiming(backoff_first=0.02, backoff_most=0.05, page=8, page_limit=25_000)
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=timing)
        await followed.synced()
        assert len(followed.store) == 12
        assert [one.query["limit"] for one in fake.requests[:3]] == ["8", "4", "2"]
        tasks.cancel_scope.cancel()


async def test_objects_with_large_annotations_are_listed_few_at_a_time(fake: FakeApiServer, faked: Client) -> None:
    """A page of 200 such objects kept the event loop, and thus every server, for more than a second."""
    for number in range(16):
        fake.put("shop", f"a{number:03}", spec={"text": "x" * 250_000})
    for number in range(400):
        fake.put("shop", f"b{number:03}")
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=WatchTiming())
        await followed.synced()
        assert len(followed.store) == 416
        limits = [int(one.query["limit"]) for one in fake.requests if "limit" in one.query]
        assert limits == [200, 100, 50, 25, 12, 6, 6, 6, 6, 12, 24, 48, 96, 192, 200]
        tasks.cancel_scope.cancel()


class CountedStore(Store):
    """Notes how many turns another task had before each object was packed, stored and announced."""

    def __init__(self) -> None:
        super().__init__(self.index)
        self.turns = 0
        self.seen: list[int] = []
        self.stored: list[int] = []
        self.announced: list[int] = []

    def index(self, _: dict[str, Any]) -> tuple[str, ...]:
        self.stored.append(self.turns)
        return ()

    def note(self, _: StoreChange) -> None:
        self.announced.append(self.turns)

    async def take_turns(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.turns += 1

    def pack(self, obj: dict[str, Any], api_version: str, kind: str) -> Stored:
        self.seen.append(self.turns)
        return super().pack(obj, api_version, kind)


async def test_other_tasks_have_a_turn_while_the_objects_of_a_list_are_packed_and_stored(
    fake: FakeApiServer, faked: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "TURN_SECONDS", 0.0)
    for number in range(8):
        fake.put("shop", f"w{number}")
    store = CountedStore()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.take_turns)
        tasks.start_soon(reflect, faked, WIDGETS, store, store.note)
        with anyio.fail_after(DEADLINE):
            await store.synced.wait()
        tasks.cancel_scope.cancel()
    assert [len(set(turns)) for turns in (store.seen, store.stored, store.announced)] == [8, 8, 8]


async def test_an_object_that_this_process_creates_during_a_list_is_followed(
    fake: FakeApiServer, faked: Client
) -> None:
    """Of a Secret that was created while Secrets were listed, no later change or deletion was noticed."""
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, "shop")

        async def create_after_reading(request: web.Request) -> web.StreamResponse:
            answer = fake._list(request)
            followed.store.put(pack(copy.deepcopy(fake.put("shop", "ours"))), by=Key("shop", "owner"))
            return answer

        fake.faults["list"].append(create_after_reading)
        await followed.synced()
        await until(lambda: followed.store.get(Key("shop", "ours")), f"the object in {followed.said}")
        fake.delete("shop", "ours")
        await until(lambda: followed.store.get(Key("shop", "ours")) is None, f"the deletion in {followed.said}")
        assert followed.said[-2:] == [("ours", *APPEARED), ("ours", *GONE)]
        tasks.cancel_scope.cancel()


async def test_a_list_that_is_cancelled_while_it_is_stored_announces_all_that_it_stores(
    fake: FakeApiServer, faked: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "TURN_SECONDS", 0.0)
    for number in range(8):
        fake.put("shop", f"w{number}")
    store = CountedStore()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reflect, faked, WIDGETS, store, store.note)
        with anyio.fail_after(DEADLINE):
            while not store.stored:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert (len(store), len(store.announced)) == (8, 8)
    assert not store.synced.is_set()


async def test_an_expired_token_after_large_objects_leads_to_one_list_without_pages(
    fake: FakeApiServer, faked: Client
) -> None:
    for number in range(6):
        fake.put("shop", f"w{number}", spec={"text": "x" * 1_000_000})
    gone = 0

    async def expire(request: web.Request) -> web.StreamResponse:
        nonlocal gone
        if "continue" not in request.query:
            return fake._list(request)
        gone += 1
        return await refuse(410, "Expired")(request)

    fake.always["list"] = expire
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked, timing=WatchTiming())
        await followed.synced()
        assert len(followed.store) == 6
        assert gone == 1
        tasks.cancel_scope.cancel()


async def test_a_single_object_that_is_too_long_is_reported(
    fake: FakeApiServer, faked: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fake.put("shop", "w", spec={"text": "x" * 30_000})
    async with anyio.create_task_group() as tasks:
        Followed(tasks, faked, timing=WatchTiming(backoff_first=0.02, backoff_most=0.05, page=2, page_limit=25_000))
        await until(lambda: fake.count("list") >= 4, "another attempt")
        tasks.cancel_scope.cancel()
    assert "the answer is longer than 25,000 bytes" in str([vars(one) for one in caplog.records])


async def endless(request: web.Request) -> web.StreamResponse:
    """An answer that never ends."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"[" * 2**20)


async def test_an_endless_answer_is_aborted_and_the_error_names_the_request(fake: FakeApiServer, faked: Client) -> None:
    fake.always["list"] = endless
    path = WIDGETS.path()
    with anyio.fail_after(DEADLINE), pytest.raises(AnswerTooLong, match=f"GET {path}: .* longer than 67,108,864 bytes"):
        await faked.request("GET", path)
    with pytest.raises(AnswerTooLong):
        await list_objects(faked, WIDGETS, None)


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_list_of_a_command_goes_on_where_its_token_expired(
    fake: FakeApiServer, faked: Client, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    """The API server's answer has a token with which the list goes on."""
    monkeypatch.setattr(listing, "PAGE", 2)
    for name in "abcde":
        fake.put("shop", name)

    async def expire(request: web.Request) -> web.StreamResponse:
        if request.query.get("continue") != "2":
            return fake._list(request)
        metadata = {"continue": "3"} if resumes else {}
        return web.json_response(status_body(410, "Expired", "too old") | {"metadata": metadata}, status=410)

    fake.always["list"] = expire
    if resumes:
        listed = await list_objects(faked, WIDGETS, None)
        assert [one["metadata"]["name"] for one in listed] == ["a", "b", "d", "e"]
    else:
        with pytest.raises(ApiError, match="410 Expired"):
            await list_objects(faked, WIDGETS, None)


async def test_objects_that_are_nested_too_deeply_delay_no_other(fake: FakeApiServer, faked: Client) -> None:
    deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    head = b'{"apiVersion":"example.dev/v1","kind":"Widget","metadata":{"namespace":"shop","name":"%s","uid":"%s",'
    one = head % (b"a", b"a") + b'"resourceVersion":"300"},"spec":' + deep + b"}"
    listed = b'{"kind":"WidgetList","metadata":{"resourceVersion":"300"},"items":[' + one + b"]}"
    other = head % (b"b", b"b") + b'"resourceVersion":"301"},"spec":' + deep + b"}"
    last = head % (b"c", b"c") + b'"resourceVersion":"302"}}'
    events = [b'{"type":"ADDED","object":' + obj + b"}\n" for obj in (other, last)]
    fake.always["list"] = plain(200, listed.decode())
    fake.faults["watch"].append(say(b'{"type":[],"object":{"metadata":{"resourceVersion":"300"}}}\n'))
    fake.faults["watch"].append(say(*events))
    async with anyio.create_task_group() as tasks:
        followed = Followed(tasks, faked)
        await followed.saw(("a", *APPEARED), ("b", *APPEARED), ("c", *APPEARED))
        tasks.cancel_scope.cancel()
