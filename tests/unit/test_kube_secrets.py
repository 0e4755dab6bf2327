"""If the API server refuses a Secret, the error shows status and reason, never the message."""

import json
import traceback
from base64 import b64encode
from typing import Any, cast

import pytest

from pgrole_controller.core.connection_secret import HASH, SecretContent, is_ours
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import SALT_BYTES
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NAMESPACE_GOES, ApiError, KubeError, TooManyFields, Unreachable
from pgrole_controller.kube.secrets import read_secret, write_secret
from pgrole_controller.kube.stored_object import Stored, pack
from tests.cpu_time import within_a_callback

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
    causes = frozenset({NAMESPACE_GOES, HIDDEN})
    client = cast("Client", FailingClient(ApiError(409, reason, f"it was modified: {HIDDEN}", 3.0, causes)))
    with pytest.raises(ApiError) as refused:
        await write_secret(client, KEY, owner(), SecretContent({}, {}, {"password": HIDDEN.encode()}), None)
    assert (refused.value.status, refused.value.reason, refused.value.retry_after) == (409, shown, 3.0)
    assert "not shown" in refused.value.message
    assert refused.value.causes == {NAMESPACE_GOES}
    assert HIDDEN not in "".join(traceback.format_exception(refused.value)) + repr(vars(refused.value))
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)


async def test_the_content_of_a_broken_answer_is_hidden_but_the_clients_own_messages_are_shown() -> None:
    broken = Unreachable(f"POST /secrets: bad status line {HIDDEN}")
    broken.__cause__ = ValueError(f"bad status line {HIDDEN}")
    for error, said in ((broken, "ValueError"), (Unreachable("not sent, no leader"), "not sent")):
        with pytest.raises(Unreachable, match=said) as failed:
            await write_secret(cast("Client", FailingClient(error)), KEY, owner(), SecretContent({}, {}, {}), None)
        assert HIDDEN not in "".join(traceback.format_exception(failed.value))


class AnsweringClient:
    def __init__(self, secret: dict[str, Any]) -> None:
        about = {"namespace": KEY.namespace, "name": KEY.name, "uid": "u", "resourceVersion": "1"}
        self.answer = json.dumps({"metadata": about, **secret}, separators=(",", ":")).encode()

    async def request(self, *_: object, **__: object) -> bytes:
        return self.answer


async def test_a_secret_is_read_and_hashed_within_a_callback_or_not_at_all() -> None:
    salt = b64encode(b"s" * SALT_BYTES).decode()
    few, many = ({"data": {f"{number:x}": "" for number in range(count)}} for count in (19_000, 110_000))
    with within_a_callback():
        secret = await read_secret(cast("Client", AnsweringClient(few)), KEY)
        assert secret is not None
        assert not is_ours(secret.data, {HASH: f"v1:{salt}:x"})
    client = cast("Client", AnsweringClient(many))
    with within_a_callback(), pytest.raises(TooManyFields, match='Secret "delivered" has more than 20,000 fields'):
        await read_secret(client, KEY)
