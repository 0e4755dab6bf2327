"""Status, finalizers and Events against the real API server; their faults against the fake."""

import json
import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.events import MAKE_WAY_SECONDS, Recorder
from pgrole_controller.kube.resource import EVENTS, MERGE_PATCH, NAMESPACES
from pgrole_controller.kube.server_side_apply import FINALIZER, apply_finalizer, apply_status, unchanged
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.metrics import REGISTRY
from tests.fake_apiserver import (
    WIDGETS,
    FakeApiServer,
    define_widgets,
    make_namespace,
    make_widget,
    refuse,
)


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    async with Client.connect(str(api_server.kubeconfig)) as connected:
        await define_widgets(connected)
        yield connected


async def read(client: Client, namespace: str, name: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await client.request("GET", WIDGETS.path(namespace, name)))
    return found


async def remove(client: Client, namespace: str, name: str = "a") -> None:
    await client.request("DELETE", WIDGETS.path(namespace, name))


async def edit(client: Client, namespace: str, body: dict[str, Any], name: str = "a") -> None:
    await client.request("PATCH", WIDGETS.path(namespace, name), body=body, content_type=MERGE_PATCH)


async def make(client: Client, namespace: str, name: str = "a") -> Stored:
    return pack(await make_widget(client, namespace, name, size=1))


STATUS = {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}], "extra": "x"}


async def test_a_status_is_applied_completely_and_omitted_fields_are_removed(client: Client, namespace: str) -> None:
    first = await apply_status(client, WIDGETS, await make(client, namespace), STATUS)
    assert first.object()["status"] == STATUS
    second = await apply_status(client, WIDGETS, first, {"observedGeneration": 2})
    found = await read(client, namespace)
    assert found["status"] == {"observedGeneration": 2}
    assert found["spec"] == {"size": 1}
    assert found["metadata"]["resourceVersion"] == second.resource_version
    assert "managedFields" not in second.object()["metadata"]


async def test_applying_the_same_status_again_makes_no_new_version(client: Client, namespace: str) -> None:
    first = await apply_status(client, WIDGETS, await make(client, namespace), STATUS)
    assert unchanged(first.object()["status"], STATUS)
    assert (await apply_status(client, WIDGETS, first, STATUS)).is_same(first)


async def test_a_status_for_an_object_that_changed_since_it_was_read_is_refused(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    await edit(client, namespace, {"spec": {"size": 2}})
    with pytest.raises(ApiError) as refused:
        await apply_status(client, WIDGETS, stored, STATUS)
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


async def test_a_recreated_object_does_not_get_the_status_of_the_old_one(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    await remove(client, namespace)
    with pytest.raises(ApiError) as gone:
        await apply_status(client, WIDGETS, stored, STATUS)
    assert gone.value.status == 404
    await make(client, namespace)
    with pytest.raises(ApiError) as other:
        await apply_status(client, WIDGETS, stored, STATUS)
    assert other.value.status == 409
    assert "status" not in await read(client, namespace)


async def test_a_finalizer_is_set_and_removed_beside_those_of_others(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    await edit(client, namespace, {"metadata": {"finalizers": ["example.dev/other"]}})
    held = await apply_finalizer(client, WIDGETS, stored, True)
    assert held is not None
    assert sorted(held.object()["metadata"]["finalizers"]) == ["example.dev/other", FINALIZER]
    released = await apply_finalizer(client, WIDGETS, held, False)
    assert released is not None
    assert released.object()["metadata"]["finalizers"] == ["example.dev/other"]
    assert released.object()["spec"] == {"size": 1}


async def test_each_installation_sets_and_removes_a_finalizer_of_its_own(client: Client, namespace: str) -> None:
    names = [f"{one}.pgrole.dev/in-use" for one in ("team-a", "x" * 63)]
    held = await make(client, namespace)
    for name in names:
        written = await apply_finalizer(client, WIDGETS, held, True, finalizer=name, manager=name.split(".")[0])
        assert written is not None
        held = written
    assert sorted(held.object()["metadata"]["finalizers"]) == names
    released = await apply_finalizer(client, WIDGETS, held, False, finalizer=names[0], manager="team-a")
    assert released is not None
    assert released.object()["metadata"]["finalizers"] == names[1:]


async def test_removing_the_finalizer_of_a_terminating_object_deletes_it(client: Client, namespace: str) -> None:
    held = await apply_finalizer(client, WIDGETS, await make(client, namespace), True)
    assert held is not None
    await remove(client, namespace)
    assert (await read(client, namespace))["metadata"]["deletionTimestamp"]
    await apply_finalizer(client, WIDGETS, held, False)
    with pytest.raises(ApiError) as gone:
        await read(client, namespace)
    assert gone.value.status == 404
    assert await apply_finalizer(client, WIDGETS, held, False) is None


@pytest.mark.parametrize("present", [True, False])
async def test_a_finalizer_for_a_deleted_object_does_not_recreate_it(
    client: Client, namespace: str, present: bool
) -> None:
    stored = await make(client, namespace)
    await remove(client, namespace)
    assert await apply_finalizer(client, WIDGETS, stored, present) is None
    with pytest.raises(ApiError) as gone:
        await read(client, namespace)
    assert gone.value.status == 404


@pytest.mark.parametrize("present", [True, False])
async def test_a_finalizer_for_an_earlier_object_does_not_reach_the_recreated_one(
    client: Client, namespace: str, present: bool
) -> None:
    stored = await make(client, namespace)
    await remove(client, namespace)
    again = await make(client, namespace)
    assert await apply_finalizer(client, WIDGETS, stored, present) is None
    assert pack(await read(client, namespace)).is_same(again)


async def test_a_finalizer_that_another_client_wrote_too_is_removed(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    await edit(client, namespace, {"metadata": {"finalizers": ["example.dev/other", FINALIZER]}})
    released = await apply_finalizer(client, WIDGETS, stored, False)
    assert released is not None
    assert released.object()["metadata"]["finalizers"] == ["example.dev/other"]


async def test_a_terminating_object_gets_no_finalizer(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    await edit(client, namespace, {"metadata": {"finalizers": ["example.dev/other"]}})
    await remove(client, namespace)
    with pytest.raises(ApiError) as refused:
        await apply_finalizer(client, WIDGETS, stored, True)
    assert refused.value.status == 422


async def written(recorder: Recorder) -> None:
    recorder.close()
    with anyio.fail_after(30):
        await recorder.run()


async def events(client: Client, namespace: str) -> list[dict[str, Any]]:
    listed = json.loads(await client.request("GET", EVENTS.path(namespace)))
    return sorted(listed["items"], key=lambda event: str(event["eventTime"]))


async def test_an_event_names_its_object_and_its_reporter(client: Client, namespace: str) -> None:
    stored = await make(client, namespace)
    recorder = Recorder(client, instance="h" * 300, now=lambda: datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=UTC))
    recorder.record(stored, "DriftCorrected", "superuser was set", action="Correct")
    await written(recorder)
    (event,) = await events(client, namespace)
    assert event["regarding"] == {
        "apiVersion": "example.dev/v1",
        "kind": "Widget",
        "namespace": namespace,
        "name": "a",
        "uid": stored.uid,
        "resourceVersion": stored.resource_version,
    }
    assert (event["reason"], event["type"], event["action"]) == ("DriftCorrected", "Normal", "Correct")
    assert (event["note"], event["eventTime"]) == ("superuser was set", "2026-01-02T03:04:05.000000Z")
    assert event["reportingController"] == "pgrole.dev/controller"
    assert len(event["reportingInstance"].encode()) == 128
    assert recorder.dropped == 0


async def test_an_event_is_written_for_an_object_with_any_legal_name(client: Client, namespace: str) -> None:
    recorder = Recorder(client)
    letters = ["a" * size for size in range(1, 254)]
    # Where a long name is cut, these have characters with which no part of a name may end.
    dashes = [f"{'a' * size}{'-' * (252 - size)}a" for size in range(225, 240)]
    dots = [f"{'a' * size}.{'b' * (252 - size)}" for size in range(225, 240)]
    for name in (*letters, *dashes, *dots):
        regarding = {
            "apiVersion": "example.dev/v1",
            "kind": "Widget",
            "name": name,
            "uid": name,
            "namespace": namespace,
        }
        recorder.record(regarding, "Seen", "as it is", action="See")
    await written(recorder)
    assert recorder.dropped == 0
    written_for = {event["regarding"]["name"] for event in await events(client, namespace)}
    assert written_for == {*letters, *dashes, *dots}


async def test_a_note_longer_than_the_api_server_accepts_is_truncated(client: Client, namespace: str) -> None:
    recorder = Recorder(client)
    recorder.record(await make(client, namespace), "Refused", "ä" * 1_024, action="Apply", event_type="Warning")
    await written(recorder)
    (event,) = await events(client, namespace)
    assert event["type"] == "Warning"
    assert len(event["note"].encode()) <= 1_024
    assert event["note"].endswith("ä…")


async def test_equal_events_within_six_minutes_are_counted_in_one_event(client: Client, namespace: str) -> None:
    stored, clock = await make(client, namespace), [0.0]
    recorder = Recorder(client, clock=lambda: clock[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        recorder.record(stored, "DriftCorrected", "login", action="Correct")
        await count(client, namespace, [None])
        recorder.record(stored, "DriftCorrected", "login", action="Correct")
        await count(client, namespace, [2])
        for _ in range(3):
            recorder.record(stored, "DriftCorrected", "login", action="Correct")
        recorder.record(stored, "RoleDropped", "another reason", action="Drop")
        await count(client, namespace, [5, None])
        recorder.record(stored, "DriftCorrected", "login, createdb", action="Correct")
        await count(client, namespace, [5, None, None])
        clock[0] = 361.0
        recorder.record(stored, "DriftCorrected", "login", action="Correct")
        recorder.close()
    await count(client, namespace, [5, None, None, None])


async def count(client: Client, namespace: str, counts: list[int | None]) -> None:
    """Waits until the Events of the namespace, by time, have these counts in their series."""
    found: list[int | None] = []
    with anyio.move_on_after(30):
        while found != counts:
            await anyio.sleep(0.01)
            found = [(event.get("series") or {}).get("count") for event in await events(client, namespace)]
        return
    pytest.fail(f"{found} instead of {counts}")


async def test_repetitions_before_the_first_write_are_one_event_with_a_count(client: Client, namespace: str) -> None:
    stored, recorder = await make(client, namespace), Recorder(client)
    for _ in range(7):
        recorder.record(stored, "DriftCorrected", "again", action="Correct")
    await written(recorder)
    (event,) = await events(client, namespace)
    assert event["series"]["count"] == 7
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["series"]["lastObservedTime"])


async def test_an_event_that_was_deleted_meanwhile_is_created_again(client: Client, namespace: str) -> None:
    stored, recorder = await make(client, namespace), Recorder(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        recorder.record(stored, "DriftCorrected", "first", action="Correct")
        await count(client, namespace, [None])
        (event,) = await events(client, namespace)
        await client.request("DELETE", EVENTS.path(namespace, event["metadata"]["name"]))
        recorder.record(stored, "DriftCorrected", "second", action="Correct")
        await count(client, namespace, [None])
        recorder.close()


async def test_an_event_about_an_object_without_namespace_is_in_default(client: Client) -> None:
    name = f"server-{datetime.now(UTC).timestamp()}"
    reference = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "name": name, "uid": name}
    recorder = Recorder(client)
    recorder.record(reference, "ServerGone", "not reachable", action="Connect", event_type="Warning")
    await written(recorder)
    assert name in [event["regarding"]["name"] for event in await events(client, "default")]


async def test_a_terminating_namespace_does_not_delay_events_of_others(
    client: Client, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    going = await make_namespace(client)
    inside = await make(client, going)
    await client.request("DELETE", NAMESPACES.path(None, going))
    recorder = Recorder(client)
    for number in range(60):  # retrying each after a second would take a minute
        recorder.record(inside, f"Reason{number}", "gone", action="Drop")
    recorder.record(await make(client, namespace), "RoleCreated", "made", action="Create")
    with caplog.at_level(logging.INFO, "pgrole_controller.kube.events"):
        await written(recorder)
    assert [event["reason"] for event in await events(client, namespace)] == ["RoleCreated"]
    assert recorder.dropped == 0
    assert caplog.messages == ["event skipped: namespace is terminating"] * 60


async def test_an_event_about_an_object_whose_namespace_is_deleted_does_not_count_as_lost(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(client)
    recorder.record(REFERENCE | {"namespace": "was-deleted"}, "RoleDropped", "dropped the role", action="Drop")
    with caplog.at_level(logging.INFO, "pgrole_controller.kube.events"):
        await written(recorder)
    assert recorder.dropped == 0
    assert caplog.messages == ["event skipped: namespace is deleted"]


REFERENCE = {"apiVersion": "v1", "kind": "Widget", "namespace": "shop", "name": "a", "uid": "u"}


def dropped_events() -> float:
    return REGISTRY.get_sample_value("pgrole_events_dropped_total") or 0.0


async def test_a_failing_api_server_is_asked_at_most_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake, before = FakeApiServer(EVENTS), dropped_events()
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        fake.always["post"] = refuse(503, "ServiceUnavailable")
        recorder = Recorder(client)
        recorder.record(REFERENCE, "A", "x", action="B")
        await written(recorder)
        assert fake.count("post") == 2
        assert recorder.dropped == dropped_events() - before == 1
    (dropped,) = [one for one in caplog.records if one.msg == "event dropped"]
    assert vars(dropped)["object"] == "shop/a"  # also the key by which repeated warnings are left out


async def test_a_namespace_that_accepts_no_events_does_not_delay_those_of_others(tmp_path: Path) -> None:
    """A tenant can bring that about: admission plugin EventRateLimit limits the Events of each namespace."""
    fake = FakeApiServer(EVENTS)

    async def limit(request: web.Request) -> web.StreamResponse:
        if "/namespaces/full/" in request.path:
            return await refuse(429, "TooManyRequests")(request)
        return await fake._create(request)

    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        fake.always["post"] = limit
        recorder = Recorder(client)
        for number in range(600):  # each was tried again after a second, before anything else
            recorder.record(REFERENCE | {"namespace": "full"}, f"Reason{number}", "x", action="B")
        recorder.record(REFERENCE, "A", "x", action="B")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recorder.run)
            with anyio.fail_after(60):
                while not fake.objects:  # noqa: ASYNC110 -- the fake has no signal
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert recorder.dropped < 100


async def test_a_namespace_whose_events_are_not_answered_does_not_delay_those_of_others(tmp_path: Path) -> None:
    """An admission webhook that hangs: no Event of any namespace was written any more."""
    fake = FakeApiServer(EVENTS)

    async def hang(request: web.Request) -> web.StreamResponse:
        if "/namespaces/slow/" in request.path:
            await anyio.sleep_forever()
        return await fake._create(request)

    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        fake.always["post"] = hang
        recorder = Recorder(client)
        for number in range(5):
            recorder.record(REFERENCE | {"namespace": "slow"}, f"Reason{number}", "x", action="B")
        recorder.record(REFERENCE, "A", "x", action="B")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recorder.run)
            with anyio.fail_after(60):
                while not fake.objects:  # noqa: ASYNC110 -- the fake has no signal
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_the_namespace_with_most_events_loses_those_that_are_too_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake, before = FakeApiServer(EVENTS), dropped_events()
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        recorder = Recorder(client, waiting_limit=10)
        for number in range(50):
            recorder.record(REFERENCE, f"Reason{number}", "x", action="B")
        for number in range(5):
            recorder.record(REFERENCE | {"namespace": "other"}, f"Reason{number}", "x", action="B")
        await written(recorder)
        assert recorder.dropped == dropped_events() - before == 45
        assert sorted(namespace for namespace, _ in fake.objects) == ["other"] * 5 + ["shop"] * 5
    assert caplog.messages == ["event queue full, dropping events", "event queue was full, events dropped"]
    assert vars(caplog.records[1])["count"] == 45


async def test_an_api_server_that_refuses_everything_for_a_while_loses_few_events(tmp_path: Path) -> None:
    fake = FakeApiServer(EVENTS)
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        fake.faults["post"].extend([refuse(503, "ServiceUnavailable")] * 42)
        recorder = Recorder(client)
        for number in range(40):
            recorder.record(REFERENCE | {"namespace": f"n{number}", "uid": f"u{number}"}, "A", "x", action="B")
        await written(recorder)
        assert 2 <= recorder.dropped < 10
        assert len(fake.objects) == 40 - recorder.dropped


@pytest.mark.parametrize("end", ["quiet", "time", "crowded", "closed"])
async def test_events_wait_for_more_urgent_requests_up_to_a_limit(tmp_path: Path, end: str) -> None:
    fake, clock = FakeApiServer(EVENTS), [0.0]
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        recorder = Recorder(client, clock=lambda: clock[0], waiting_limit=4)
        recorder.quiet.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recorder.run)
            recorder.record(REFERENCE, "First", "x", action="B")
            await anyio.wait_all_tasks_blocked()
            assert fake.count("post") == 0
            if end == "quiet":
                recorder.quiet.set()
            elif end == "time":
                clock[0] = MAKE_WAY_SECONDS
            elif end == "crowded":
                for number in range(2):
                    recorder.record(REFERENCE, f"Reason{number}", "x", action="B")
            else:
                recorder.close()
            with anyio.fail_after(30):
                while fake.count("post") == 0:  # noqa: ASYNC110 -- the fake has no signal
                    await anyio.sleep(0.01)
            recorder.close()
        assert recorder.dropped == 0


async def test_recording_neither_waits_nor_raises_while_nothing_is_written(tmp_path: Path) -> None:
    fake = FakeApiServer(EVENTS)
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        recorder = Recorder(client, waiting_limit=2)
        for number in range(5):
            recorder.record(REFERENCE, f"Reason{number}", "x", action="B")
        assert recorder.dropped == 3
        await written(recorder)
        assert fake.count("post") == 2
        recorder.record(REFERENCE, "Late", "x", action="B")
        assert recorder.dropped == 4
