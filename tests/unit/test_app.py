"""The controller as a whole: what it waits for at the start."""

import json
from collections.abc import Sequence
from typing import cast

import anyio
import pytest

from pgrole_controller.controller.cluster_id import read_cluster_id
from pgrole_controller.controller.errors import CannotStart
from pgrole_controller.kube.client import ApiError, Client, Unreachable
from tests.timelapse import in_timelapse

DEADLINE = 600.0


class RefusingApi:
    """Gives one answer after the other; repeats the last."""

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
async def test_an_api_server_that_is_away_or_overloaded_is_waited_for() -> None:
    passing = [ApiError(status, "", "") for status in (408, 429, 500, 502, 503, 504)]
    answer = json.dumps({"metadata": {"uid": "7f"}}).encode()
    assert await read_from(Unreachable("refused"), *passing, answer) == "7f"


@in_timelapse
async def test_a_page_of_a_proxy_is_no_answer() -> None:
    answer = json.dumps({"metadata": {"uid": "7f"}}).encode()
    assert await read_from(b"<html>be patient</html>", b'"be patient"', answer) == "7f"


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_id_that_may_not_be_read_is_said_at_once_with_what_to_do(status: int) -> None:
    with pytest.raises(CannotStart, match="Grant get on it, or set --cluster-id"):
        await read_from(ApiError(status, "", ""))
