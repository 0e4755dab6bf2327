"""What the API server says of a Secret that it refuses, where the Secret is large."""

import time
from typing import Any, cast

import pytest

from pgrole_controller.core.hint import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.secrets import Secret, write_secret
from pgrole_controller.kube.store import Stored, pack

KEY = Key("shop", "delivered")
LARGE = b"0123456789abcdef" * 60_000
OWNER: dict[str, Any] = {
    "apiVersion": "pgrole.dev/v1alpha1",
    "kind": "PgRole",
    "metadata": {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": "1"},
}


class Refusing:
    async def request(self, *_: object, **__: object) -> bytes:
        raise ApiError(409, "Conflict 0123456789abcdef", "it was modified: 0123456789abcdef" * 100)


def owner() -> Stored:
    return pack(OWNER)


async def refuse(seen: Secret | None, value: bytes) -> ApiError:
    client = cast("Client", Refusing())
    with pytest.raises(ApiError) as refused:
        await write_secret(client, KEY, owner(), {}, {}, {"password": value}, seen)
    return refused.value


async def test_a_refusal_of_a_large_secret_takes_no_time_and_shows_nothing() -> None:
    seen = Secret(KEY, "u2", "7", "Opaque", False, False, {}, {}, (), {"more": LARGE})
    error, took = await refuse(seen, b"short"), []
    for _ in range(5):  # in one of which the machine may be busy
        began = time.perf_counter()
        await refuse(seen, b"short")
        took.append(time.perf_counter() - began)
    assert min(took) < 0.1
    assert error.status == 409
    assert "0123456789abcdef" not in str(error)


async def test_a_refusal_of_a_small_secret_says_what_is_not_in_it() -> None:
    error = await refuse(None, b"0123456789abcdef")
    assert error.message.startswith("it was modified: …")
    assert "0123456789abcdef" not in str(error)
