"""postgres/framing: a peer that is not PostgreSQL causes an error that says so, and stops neither the event loop
nor the controller.
"""

import struct
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.authentication import ANYTHING, Login, Unacceptable
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.framing import Framing, NotificationFilter, NotPostgres, check_row
from tests.hostile import (
    AT_REST,
    GREETING,
    KEY,
    LET_IN,
    PARAMETERS,
    accounting,
    array,
    description,
    error,
    message,
    notification,
    parameter,
    row,
    serving,
)

STRANGERS = {
    "NULs": b"\0" * 100,
    "a zero length": b"R\0\0\0\0" * 20,
    "a negative length": b"R\xff\xff\xff\xff" * 20,
    "another server's greeting": b"J\0\0\0\n8.0.36\0\0\0\0\0\0\0\0\0",
    "an unknown encoding": LET_IN + PARAMETERS + parameter("client_encoding", "KLINGON") + KEY + AT_REST,
    "another encoding": LET_IN + PARAMETERS + parameter("client_encoding", "LATIN1") + KEY + AT_REST,
    "no version": LET_IN + AT_REST,
    "an invalid version": LET_IN + parameter("server_version", "of course") + KEY + AT_REST,
    "a parameter without an end": LET_IN + message(b"S", b"server_version\x0018.1") + KEY + AT_REST,
    "too many parameters": LET_IN + b"".join(parameter(f"p{number}", "x") for number in range(1000)),
    "an invalid status": LET_IN + PARAMETERS + KEY + message(b"Z", b"X"),
    "COPY": GREETING + message(b"G", b"\0\0\0"),
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_a_peer_that_is_not_postgresql_is_reported(data: bytes) -> None:
    with serving(data) as server, pytest.raises(Transient, match="does not speak the PostgreSQL protocol"):
        async with connect(Endpoint.of(["127.0.0.1"], server.port, "postgres", "u", "p", "disable"), "test"):
            pass


def framing() -> Framing:
    return Framing(Login(ANYTHING))


def take_all(framed: Framing, data: bytes, size: int) -> bytes:
    passed = b""
    for start in range(0, len(data), size):
        framed.feed(data[start : start + size])
        while framed.has_more:
            before = len(passed)
            passed += framed.take(3)
            if len(passed) == before:
                break
    return passed


ANSWER = (
    message(b"1")
    + message(b"t", b"\0\1\0\0\0\x19")
    + description(("a", 25), ("b", 1009), ("c", 23))
    + message(b"2")
    + row(b"text", array(25, b"x", None, b""), None)
    + row(b"", array(25, dimensions=()), b"\0\0\0\1")
    + row(None, array(25, b"a", b"b", b"c", b"d", dimensions=(2, 2)), None)
    + message(b"C", b"SELECT 3\0")
    + AT_REST
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_messages_are_parsed_in_pieces_of_any_size(size: int) -> None:
    framed, data = framing(), GREETING + (ANSWER + error()) * 3
    assert take_all(framed, data, size) == data
    framed.feed(b"\0")
    with pytest.raises(NotPostgres):
        framed.take(1)


def test_unread_notices_and_notifications_are_dropped() -> None:
    between = error(b"psst", kind=b"N") + notification(b"hello")
    assert take_all(framing(), GREETING + between + ANSWER + between, 50) == GREETING + ANSWER


@given(st.lists(st.binary(max_size=60) | st.sampled_from([GREETING, ANSWER, error()]), max_size=8), st.integers(1, 99))
def test_any_input_is_passed_on_completely_or_rejected(pieces: list[bytes], size: int) -> None:
    framed, data = framing(), b"".join(pieces)
    try:
        passed = take_all(framed, data, size)
    except Unacceptable:
        return
    assert len(data) - len(passed) < 8 << 20


BAD_ROWS = {
    "no count": b"",
    "more columns than there are": b"\0\2" + struct.pack("!i", -1),
    "fewer": b"\0\1" + struct.pack("!ii", -1, -1),
    "a value beyond the end": b"\0\1" + struct.pack("!i", 5) + b"four",
    "a negative length": b"\0\1" + struct.pack("!i", -2) + b"xx",
    "a negative length at the end": b"\0\1" + struct.pack("!i", -2),
    "a very negative length": b"\0\1" + struct.pack("!i", -(2**31)) + b"xx",
    "65,535 columns": b"\xff\xff" + struct.pack("!i", -1) * 0xFFFF,
    "an array of two thousand million": row(array(25, b"x", b"yyyy", dimensions=(2**31 - 1,)))[5:],
    "the same in two dimensions": row(array(25, b"x", b"y", dimensions=(2**31 - 1, 0)))[5:],
    "a hundred million in six dimensions": row(array(25, dimensions=(20,) * 6))[5:],
    "a negative dimension": row(array(25, b"x", b"yyyy", dimensions=(-1,)))[5:],
    "an element of negative length": row(array(25, b"x", dimensions=(2,)) + struct.pack("!ii", -4, -4))[5:],
    "an element beyond the end": row(array(25, b"x", dimensions=(2,)) + struct.pack("!ii", 400, -4))[5:],
    "less than there is": row(array(25, b"x", b"y", dimensions=(1,)))[5:],
    "flags of no array": row(array(25, b"x", b"yyyy", dimensions=(9999,), flags=25))[5:],
    "too many elements in all": row(*[array(25, *[None] * 60_000)] * 2)[5:],
}


@pytest.mark.parametrize("body", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_row_whose_lengths_would_mislead_asyncpg_is_rejected(body: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        check_row(body)
    framed = framing()
    framed.feed(GREETING + message(b"D", body))
    with pytest.raises(NotPostgres):
        framed.take(100)


@pytest.mark.parametrize("kind", [2249, 2287, 3904, 16, 0, 16384, 71, 2970, 4294967295])
def test_only_types_that_asyncpg_reads_safely_are_accepted(kind: int) -> None:
    framed = framing()
    framed.feed(GREETING + description(("a", kind)))
    if kind == 16:
        assert framed.take(100).endswith(description(("a", 16)))
        return
    with pytest.raises(Unacceptable, match=f"values of type {kind},"):
        framed.take(100)


LARGE = {
    "an error": error(b"x" * 9_000_000),
    "a notice": error(b"x" * 20_000_000, kind=b"N"),
    "a notification": notification(b"x" * 9000),
    "a parameter": parameter("p", "x" * 9000),
    "a row": row(b"x" * (8 << 20)),
}


@pytest.mark.parametrize("what", LARGE)
def test_an_oversized_message_is_rejected_by_its_first_bytes(what: str) -> None:
    framed = framing()
    framed.feed(GREETING + LARGE[what][:5])
    with pytest.raises(Unacceptable, match=rf"the server sends {what} of \d+ bytes; the limit is \d+"):
        framed.take(100)


def test_the_limit_on_an_answer_applies_to_each_statement_separately() -> None:
    rows = row(b"x" * 1000) * 15_000
    framed = framing()
    for _ in range(3):
        framed.feed(GREETING[:-6] if framed.answered is False else b"")
        framed.feed(rows + AT_REST)
        while framed.has_more:
            framed.take(1000)
    with pytest.raises(Unacceptable, match="the answer to one statement is larger than 16 MiB"):  # noqa: PT012
        for small in (rows, row(*[b"x"] * 100) * 10_000):
            framed.feed(small)
            while framed.has_more:
                framed.take(1000)


@pytest.mark.parametrize("text", [b"gr\xfcn", b"\xff\xfe" * 50, "grün 漢字".encode(), b"\xed\xa0\x80"])
def test_an_error_in_another_encoding_stays_an_error(text: bytes) -> None:
    framed, data = framing(), error(text)
    framed.feed(data)
    passed = framed.take(1)
    assert len(passed) == len(data)
    passed[5:].decode()
    if text.decode(errors="replace").encode() == text:
        assert passed == data


@pytest.mark.parametrize("size", [1000, 65_531, 65_537, 1_000_000])
@pytest.mark.parametrize("text", [b"x" * 300_000, "é".encode() * 100_000, b"D\xff" * 35_000])
def test_a_long_error_is_truncated_and_the_next_message_is_read(text: bytes, size: int) -> None:
    framed = framing()
    long, short = error(text), error(b"not this one")
    passed = take_all(framed, GREETING + long + AT_REST + short + AT_REST, size)
    assert passed.startswith(GREETING)
    assert passed.endswith(AT_REST + short + AT_REST)
    found = passed[len(GREETING) : -len(AT_REST + short + AT_REST)]
    assert 60_000 < len(found) < 200_000
    assert struct.unpack("!i", found[1:5])[0] == len(found) - 1
    assert found[5:].decode().endswith("\0\0")
    assert found[5:100] == long[5:100].replace(b"\xff", b"?")


def test_a_long_notice_is_dropped_and_the_next_message_is_read() -> None:
    long = error(b"x" * 300_000, kind=b"N")
    assert take_all(framing(), GREETING + long + ANSWER + long + AT_REST, 10_000) == GREETING + ANSWER + AT_REST


async def test_an_error_that_lists_many_dependents_does_not_end_the_session(
    own_postgres: PostgresServer,
) -> None:
    arguments = ", ".join([f'"{"t" * 63}"."{"u" * 63}"'] * 99)
    async with connect(Endpoint(own_postgres.dsn()), "test") as connection:
        await connection.execute(f'CREATE ROLE owner; CREATE SCHEMA "{"t" * 63}"')
        await connection.execute(f'CREATE DOMAIN "{"t" * 63}"."{"u" * 63}" AS int')
        for number in range(100):
            await connection.execute(
                f"CREATE FUNCTION public.f{number}({arguments}) RETURNS int LANGUAGE sql AS 'SELECT 1';"
                f"ALTER FUNCTION public.f{number} OWNER TO owner"
            )
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(PgRoleError, match="still needed"), translate_errors():
            await connection.execute("DROP ROLE owner")
        assert await connection.fetchval("SELECT pg_backend_pid()") == pid


async def test_an_error_with_a_role_name_in_another_encoding_keeps_its_meaning() -> None:
    refused = error(b'role "gr\xfcn" does not log in', b"28000")
    with serving(refused) as server, pytest.raises(Transient) as caught:
        async with connect(Endpoint.of(["127.0.0.1"], server.port, "postgres", "u", "p", "disable"), "test"):
            pass
    assert 'rejects the credentials; correct the Secret or the DSN: role "gr?n" does not log in' in caught.value.message


@pytest.mark.parametrize("code", [b"XX000", b"P0001", b"28P01"])
async def test_a_servers_message_is_truncated_and_made_printable(code: bytes) -> None:
    with serving(error(b"\x1b[2J\r\n" + b"x" * 60_000, code)) as server, pytest.raises(PgRoleError) as caught:
        async with connect(Endpoint.of(["127.0.0.1"], server.port, "postgres", "u", "p", "disable"), "test"):
            pass
    message = caught.value.message
    assert message.isprintable()
    assert 490 < message.count("x") < 510
    assert "… (59506 more characters)" in message


def erring(code: bytes, context: bytes = b"") -> bytes:
    """An error that a server sends after the login, knowing every setting."""
    where = b"W" + context + b"\0" if context else b""
    return LET_IN + message(b"E", b"SFATAL\0VFATAL\0C" + code + b"\0Mno\0" + where + b"\0")


IN_FUNCTION = b"PL/pgSQL function public.at_login() line 1 at SQL statement"


@pytest.mark.parametrize(
    ("data", "suspected"),
    [
        (erring(b"P0001"), True),
        (erring(b"25P04"), True),
        (erring(b"57014", IN_FUNCTION), True),
        (erring(b"57014"), False),  # also "canceling authentication due to timeout"
        (erring(b"42P01", IN_FUNCTION), True),
        (erring(b"28000", IN_FUNCTION), False),  # no other settings are tried after it
        (erring(b"XX000"), False),
        (erring(b"42P01"), False),
        (erring(b"53300"), False),
        (erring(b"28P01"), False),
    ],
    ids=lambda value: value[-60:].decode(errors="replace").replace("\0", " ") if isinstance(value, bytes) else None,
)
async def test_a_login_event_trigger_is_suspected_only_where_a_function_failed(data: bytes, suspected: bool) -> None:
    with serving(data) as server, pytest.raises(PgRoleError) as caught:
        async with connect(Endpoint.of(["127.0.0.1"], server.port, "postgres", "u", "p", "disable"), "test"):
            pass
    assert ("login event trigger" in caught.value.message) is suspected


def collected(framed: Framing, data: bytes, most: int = 250) -> list[tuple[int, bytes]]:
    framed.feed(data)
    found: list[tuple[int, bytes]] = []
    while framed.has_more:
        framed.take(most)
        found += framed.noted
    return found


def test_notifications_of_others_are_limited_and_the_sessions_own_are_not() -> None:
    framed, notes = framing(), NotificationFilter("pgrole", 7, lambda _noted, _left_out: None)
    framed.listen(notes)
    notes.refill(0.0)
    flood = [notification(b"%d" % number, 4711) for number in range(5000)]
    flood[::1000] = [notification(b"own %d" % number, 7) for number in range(5)]
    found = collected(framed, b"".join(flood) + notification(b"elsewhere", 7, b"other"))
    assert [payload for pid, payload in found if pid == 7] == [b"own %d" % number for number in range(5)]
    assert len(found) == 5 + 1000
    assert notes.left_out
    notes.refill(1.0)
    assert len(collected(framed, b"".join(flood[1:900]))) == 500


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_skipped_notifications_do_not_hide_the_messages_between_them(size: int) -> None:
    framed, notes = framing(), NotificationFilter("pgrole", 7, lambda _noted, _left_out: None, _credit=0.0)
    framed.listen(notes)
    run = b"".join(notification(b"A\1\2" * (number % 9), 4711) for number in range(100))
    data = GREETING + run + ANSWER + run + notification(b"mine", 7) + AT_REST
    assert take_all(framed, data, size) == GREETING + ANSWER + AT_REST


async def test_answers_of_a_real_server_are_passed_on_unchanged(postgres_server: PostgresServer) -> None:
    query = """
        SELECT 1 AS a, ARRAY['a', NULL, 'ü'] AS b, ARRAY[[1, 2], [3, 4]] AS c, '{}'::text[] AS d, now() AS e,
               ARRAY['pg_read_all_data']::name[] AS f, repeat('x', 1000000) AS g, 1.5::numeric AS h,
               '3 hours'::interval AS i, decode('00000001', 'hex') AS j, gen_random_uuid() AS k, 'r'::"char" AS l,
               (SELECT array_agg(oid) FROM pg_roles) AS m, '{"a": [1]}'::jsonb AS n
    """
    async with connect(Endpoint(postgres_server.dsn()), "test") as connection:
        found = await connection.fetchrow(query)
        assert found is not None
        assert (found["b"], found["c"], found["d"]) == (["a", None, "ü"], [[1, 2], [3, 4]], [])
        assert (len(found["g"]), found["j"], found["n"]) == (1_000_000, b"\0\0\0\1", '{"a": [1]}')
        assert len(await connection.fetch("SELECT n FROM generate_series(1, 20000) AS s (n)")) == 20_000
        with pytest.raises(PgRoleError), translate_errors():
            await connection.fetch("SELECT repeat('x', 9000000)")


FLOODS = {
    "notices": error(b"psst", kind=b"N") * 2000,
    "short notices": message(b"N", b"\0") * 5000,
    "notifications": notification(b'{"op":"many"}') * 2000,
    "parameters": parameter("server_version", "18.1") * 2000,
    "a status": AT_REST * 5000,
    "rows": row(b"x") * 5000,
    "ends of nothing": message(b"1") * 5000,
    "errors": error() * 2000,
    "long errors": (error(b"x" * 7_000_000) + AT_REST) * 2,
    "long notices": (error(b"x" * 7_000_000, kind=b"N") + AT_REST) * 2,
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_takes_little_of_the_event_loop_and_little_memory(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, ticks = 3.0, 0
    with serving(GREETING, flood=FLOODS[what]) as server, accounting(monkeypatch) as account:
        endpoint = Endpoint.of(["127.0.0.1"], server.port, "postgres", "u", "p", "disable")
        before = resident()
        with anyio.move_on_after(seconds):
            while True:
                with pytest.raises(PgRoleError):
                    async with connect(endpoint, "test"):
                        pass
                ticks += 1
                await anyio.sleep(1.0)
        grown = resident() - before
    assert account.longest < 0.25, account.by
    assert account.share < 0.4, account.share
    assert grown < 64 << 20, grown


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
