"""postgres/watch: anyone can send a payload, so it is never more than a request."""

import json
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.errors import Transient
from pgrole_controller.postgres import watch
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.watch import (
    EVERYTHING,
    ChangeCallbacks,
    ChangedNames,
    NotificationHandler,
    greeting,
    read_payload,
)
from tests.timelapse import in_timelapse


def test_a_payload_names_the_role_and_its_former_name() -> None:
    assert read_payload('{"op":"insert","oid":1,"name":"app"}').roles == ("app",)
    assert read_payload('{"op":"update","oid":1,"name":"new","was":"old"}').roles == ("new", "old")
    assert read_payload('{"op":"many"}').roles is EVERYTHING


def test_a_payload_tells_which_names_another_role_has_now() -> None:
    assert read_payload('{"op":"insert","oid":1,"name":"app"}').renamed == ("app",)
    assert read_payload('{"op":"delete","oid":1,"name":"app","claim":"one"}').renamed == ("app",)
    assert read_payload('{"op":"update","oid":1,"name":"new","was":"old"}').renamed == ("new", "old")
    assert read_payload('{"op":"many"}').renamed is EVERYTHING
    for other in ('"op":"update"', '"op":"claim"', '"op":["insert"]', '"op":"update","claim":"one"'):
        assert read_payload(f'{{{other},"oid":1,"name":"app"}}').renamed == ()


async def test_that_other_sessions_announce_all_roles_does_not_tell_that_each_was_renamed() -> None:
    """Any role can do that, and roles that name creators would be read completely for it."""
    changed, renamed = list[tuple[str, ...] | None](), list[tuple[str, ...] | None]()
    handler = NotificationHandler(7, "token", ChangeCallbacks(changed.append, on_rename=renamed.append))
    altered, dropped = b'{"op":"update","oid":1,"name":"app"}', b'{"op":"delete","oid":1,"name":"app"}'
    handler.receive([(7, altered), (8, altered), (8, b'{"op":"many"}')], left_out=True)
    handler._announce()
    assert (changed, renamed) == ([("app",), None], [])
    handler.receive([(8, dropped)], left_out=False)
    handler.receive([(7, b'{"op":"many"}')], left_out=False)
    assert renamed == [("app",), None]
    handler.stop()


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "no json",
        "null",
        "7",
        '"app"',
        "[]",
        '["app"]',
        "{}",
        '{"name":7}',
        '{"name":["app"]}',
        "[" * 7_999,
        "{" * 7_999,
        '{"name":' * 900,
        "\ud800",
        "NaN",
        '{"op":["many"]}',
        f'{{"name":"app","rest":"{"x" * 2_000}"}}',
    ],
)
def test_a_payload_that_is_not_understood_names_no_role(payload: str) -> None:
    assert read_payload(payload) == ChangedNames()


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_payload_raises_an_error(payload: str) -> None:
    for names in read_payload(payload):
        assert names is EVERYTHING or all(isinstance(name, str) for name in names)


def test_a_greeting_is_unique_to_its_token_and_names_no_role() -> None:
    same = greeting("a")
    assert greeting("a") == same
    assert greeting("b") != same
    assert read_payload(greeting("a")).roles == ()


def test_a_payload_about_a_database_names_no_role_and_vice_versa() -> None:
    payload = '{"op":"database","database":"new","database_was":"old"}'
    assert read_payload(payload).databases == ("new", "old")
    assert read_payload(payload).roles == ()
    assert read_payload('{"op":"databases"}').databases is EVERYTHING
    assert read_payload('{"op":"databases"}').roles == ()
    assert read_payload('{"op":"update","oid":1,"name":"new","was":"old"}').databases == ()
    assert read_payload('{"op":"many"}').databases == ()


@pytest.mark.parametrize(
    ("steps", "ends"), [((0.0, 3600.0), False), ((0.0, -1.0, -2.0), False), ((0.0, 0.0, -3600.0), True)]
)
@in_timelapse
async def test_a_session_ends_when_the_servers_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[float, ...], ends: bool
) -> None:
    waiting = list(steps)

    async def read_clock(_: object) -> float:
        return 1.8e9 + anyio.current_time() + (waiting.pop(0) if len(waiting) > 1 else waiting[0])

    async def is_listening(_: object) -> bool:
        return True

    monkeypatch.setattr(watch, "read_clock", read_clock)
    monkeypatch.setattr(watch, "is_listening", is_listening)
    ended = ""
    with anyio.move_on_after(60.0):
        try:
            await watch.keep_alive(cast("Connection", None), anyio.Lock())
        except Transient as error:
            ended = error.message
    assert ended == ("the clock of the server was set back" if ends else "")
