"""If the API server refuses a Secret, the error shows status and reason, never the message."""

import traceback
from typing import Any, cast

import pytest

from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, KubeError, Unreachable
from pgrole_controller.kube.secrets import write_secret
from pgrole_controller.kube.store import Stored, pack

KEY = Key("shop", "delivered")
HIDDEN = "0123456789abcdef"
OWNER: dict[str, Any] = {
    "apiVersion": "pgrole.dev/v1alpha1",
    "kind": "PgRole",
    "metadata": {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": "1"},
}


class FailingClient:
    def __init__(self, error: KubeError) -> None:
        self.error = error

    async def request(self, *_: object, **__: object) -> bytes:
        raise self.error


def owner() -> Stored:
    return pack(OWNER)


@pytest.mark.parametrize(
    ("reason", "shown"), [("Conflict", "Conflict"), (f"Conflict {HIDDEN}", "Refused"), ("", "Refused")]
)
async def test_a_refusal_shows_only_its_status_and_a_known_reason(reason: str, shown: str) -> None:
    client = cast("Client", FailingClient(ApiError(409, reason, f"it was modified: {HIDDEN}", 3.0)))
    with pytest.raises(ApiError) as refused:
        await write_secret(client, KEY, owner(), {}, {}, {"password": HIDDEN.encode()}, None)
    assert (refused.value.status, refused.value.reason, refused.value.retry_after) == (409, shown, 3.0)
    assert "not shown" in refused.value.message
    assert HIDDEN not in "".join(traceback.format_exception(refused.value)) + repr(vars(refused.value))
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)


async def test_the_content_of_a_broken_answer_is_hidden_but_the_clients_own_messages_are_shown() -> None:
    broken = Unreachable(f"POST /secrets: bad status line {HIDDEN}")
    broken.__cause__ = ValueError(f"bad status line {HIDDEN}")
    for error, said in ((broken, "ValueError"), (Unreachable("not sent, another process leads"), "not sent")):
        with pytest.raises(Unreachable, match=said) as failed:
            await write_secret(cast("Client", FailingClient(error)), KEY, owner(), {}, {}, {}, None)
        assert HIDDEN not in "".join(traceback.format_exception(failed.value))
