"""controller/containment: a write to the API server that fails is told in the log, and to the next attempt."""

from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from pgrole_controller.controller.containment import attempt_write
from pgrole_controller.core.next_attempt import FailedWrite, WriteError
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, KubeError, Unreachable

KEY = Key("shop", "app")
DENIED = ApiError(403, "Forbidden", "you may not")
DOWN = Unreachable("connection refused")


async def attempt(error: KubeError | None, *, may_write: bool = True, hangs: bool = False) -> FailedWrite | None:
    async def write() -> None:
        assert may_write
        if hangs:
            await anyio.sleep_forever()
        if error is not None:
            raise error

    return await attempt_write(cast("Client", SimpleNamespace(may_write=may_write)), KEY, 0.01 if hangs else 5.0, write)


@pytest.mark.parametrize(
    ("error", "failed", "message"),
    [
        (None, None, ""),
        (DENIED, FailedWrite(WriteError.REFUSED, 0.0, str(DENIED)), "write refused by the API server"),
        (DOWN, FailedWrite(WriteError.UNREACHABLE), "write did not reach the API server"),
        (ApiError(404, "NotFound", "gone"), FailedWrite(WriteError.GONE), ""),
        (ApiError(409, "Conflict", "changed"), FailedWrite(WriteError.CONFLICT), ""),
    ],
)
async def test_the_log_names_the_object_of_a_failed_write_and_the_cause(
    error: KubeError | None, failed: FailedWrite | None, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await attempt(error) == failed
    told = [(one.message, vars(one)["object"], vars(one)["error"]) for one in caplog.records]
    assert told == ([(message, "shop/app", str(error))] if message else [])


async def test_a_write_that_hangs_ends_and_is_not_tried_while_the_api_server_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unanswered = FailedWrite(WriteError.UNREACHABLE)
    assert await attempt(None, hangs=True) == unanswered
    assert caplog.messages == ["write not answered by the API server"]
    assert await attempt(None, may_write=False) == unanswered
