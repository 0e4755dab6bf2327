"""The controller as a whole: what it waits for at startup, and how its parts are wired."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller.app import WRITE_SECONDS, Config, _RunningController
from pgrole_controller.controller.containment import CannotStart
from pgrole_controller.controller.declaration import ControllerConfig
from pgrole_controller.controller.health import Health
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.namespaces import read_cluster_id
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result
from pgrole_controller.core.request import Request, RequestReason
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.kube.transport import Reachability
from tests.timelapse import in_timelapse

DEADLINE = 600.0


class RefusingApi:
    """Gives the answers in order and repeats the last one."""

    def __init__(self, answers: Sequence[Exception | bytes]) -> None:
        self._answers = list(answers)

    async def request(self, *_: object, **__: object) -> bytes:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, bytes):
            return answer
        raise answer


async def read_from(*answers: Exception | bytes) -> str:
    with anyio.fail_after(DEADLINE):
        return await read_cluster_id(cast("Client", RefusingApi(answers)))


@in_timelapse
async def test_startup_waits_for_an_unreachable_or_overloaded_api_server() -> None:
    passing = [ApiError(status, "", "") for status in (408, 429, 500, 502, 503, 504)]
    answer = json.dumps({"metadata": {"name": "kube-system", "uid": "7f"}}).encode()
    assert await read_from(Unreachable("refused"), *passing, answer) == "7f"


@in_timelapse
async def test_startup_ignores_answers_that_a_proxy_sends_for_the_api_server() -> None:
    answer = json.dumps({"metadata": {"name": "kube-system", "uid": "7f"}}).encode()
    assert await read_from(b"<html>be patient</html>", b'"be patient"', b'{"metadata":{}}', answer) == "7f"


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_cluster_id_that_cannot_be_read_is_an_immediate_error_with_its_remedy(status: int) -> None:
    with pytest.raises(CannotStart, match="Grant get on it, or set --cluster-id"):
        await read_from(ApiError(status, "", ""))


async def test_a_pgserver_may_name_any_live_server_while_its_secret_is_read_before_it_has_a_worker() -> None:
    """Its objects' claims are no orphans there."""
    client = SimpleNamespace(may_write=True)
    client.limited = lambda _: client
    config = Config(None, ControllerConfig())
    running = _RunningController(config, cast("Client", client), "c1", Health(), Leadership())
    metadata = {"name": "second", "uid": "u2", "resourceVersion": "1", "generation": 1}
    running._observed.pgservers.put(pack({"kind": "PgServer", "metadata": metadata, "spec": {}}))
    assert running._context.live_servers.unknown() == {"second"}


class SlowlyRefusingApi:
    """Refuses each finalizer after a second, and records the reasons in the statuses that it accepts."""

    may_write, reachability = True, Reachability()

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def limited(self, _: object) -> "SlowlyRefusingApi":
        return self

    async def request(self, _method: str, path: str, *, body: dict[str, Any] | None = None, **_: object) -> bytes:
        if body is not None and "/status" in path:
            self.reasons += [one["reason"] for one in body["status"]["conditions"] if one["type"] == "Ready"]
            return json.dumps(SEEN.object() | {"status": body["status"]}).encode()
        if body is not None and "/events" not in path:
            await anyio.sleep(1.0)
            raise ApiError(403, "Forbidden", "not today")
        return json.dumps(SEEN.object()).encode()


SEEN = pack(
    {
        "kind": "PgRole",
        "metadata": {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": "1", "generation": 1},
        "spec": {},
    }
)


@in_timelapse
async def test_a_finalizer_that_is_refused_during_shutdown_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = SlowlyRefusingApi(), anyio.Event()
    running = _RunningController(Config(None, ControllerConfig()), cast("Client", api), "c1", Health(), Leadership())
    monkeypatch.setattr(running, "_start_sources", lambda _: None)
    running._store.put(SEEN)
    running._queue.put("default", Request(SEEN.key, RequestReason.OBJECT))
    await running._queue.take("default", 1)
    running._context.hand_on(Result(Target(SEEN.key, SEEN, finalizer=True)))
    asked.set()
    began = anyio.current_time()
    await running._run(asked)
    assert api.reasons == ["Conflict"]
    assert anyio.current_time() - began < WRITE_SECONDS
