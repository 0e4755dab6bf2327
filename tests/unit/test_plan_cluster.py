"""commands/plan_cluster: how the cluster is read."""

import json
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from pgrole_controller.commands.plan_cluster import read_cluster
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import NAMESPACES, PGROLES

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client


class SlowApi:
    """Answers for a namespace only once two are asked for at a time."""

    def __init__(self, refused: str = "") -> None:
        self._refused = refused
        self._asked = 0
        self._both = anyio.Event()

    async def request(self, _method: str, path: str, **_given: object) -> bytes:
        if path == PGROLES.path():
            items = [{"metadata": {"namespace": name, "name": "app"}} for name in ("a", "b")]
            return json.dumps({"metadata": {}, "items": items}).encode()
        self._asked += 1
        if self._asked == 2:
            self._both.set()
        await self._both.wait()
        name = path.removeprefix(NAMESPACES.path() + "/")
        if name == self._refused:
            raise ApiError(500, "InternalError", "out of order")
        return json.dumps({"metadata": {"name": name, "uid": f"uid-{name}"}}).encode()


async def test_namespaces_are_read_several_at_a_time() -> None:
    with anyio.fail_after(5.0):
        view = await read_cluster(cast("Client", SlowApi()), None, required=True)
    assert {name: one.uid for name, one in view.namespaces.items()} == {"a": "uid-a", "b": "uid-b"}


async def test_an_error_with_one_namespace_is_raised_as_it_is() -> None:
    with anyio.fail_after(5.0), pytest.raises(ApiError, match="out of order"):
        await read_cluster(cast("Client", SlowApi("b")), None, required=True)
