"""A session raises only its own errors, however a server or something in between damages the messages.

HOSTILE_TRIALS is the number of trials (default 60), HOSTILE_SEED the first random seed.
"""

import os
import random
import struct
from collections.abc import Callable

import anyio
import pytest

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import Mode
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer
from pgrole_controller.postgres import connection as connection_module
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.hostile import (
    END,
    PAUSE,
    Account,
    Mutation,
    accounting,
    array,
    authentication,
    description,
    error,
    message,
    notification,
    parameter,
    proxying,
    row,
)

TRIALS = int(os.environ.get("HOSTILE_TRIALS", "60"))
SEED = int(os.environ.get("HOSTILE_SEED", "11"))
AT_ONCE = 6
#: Deadline for one trial, in seconds, however busy the machine is.
DEADLINE = 120.0

Damage = Callable[[random.Random, bytes, bytes], list[bytes]]


def columns(body: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    place = 2
    for _ in range(struct.unpack_from("!H", body)[0]):
        (size,) = struct.unpack_from("!i", body, place)
        found.append(None if size < 0 else body[place + 4 : place + 4 + size])
        place += 4 + max(size, 0)
    return found


def flip(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    changed = bytearray(body or b"x")
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return [message(kind, bytes(changed))]


def change_row(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    if kind != b"D":
        return flip(dice, kind, body)
    values = columns(body)
    odd = [
        None,
        b"",
        b"\xff\xfe",
        b"x" * 70_000,
        array(25, b"x", dimensions=(2**31 - 1,)),
        b"\0" * 8,
        b"[[[[",
        b"7" * 99,
    ]
    match dice.randrange(4):
        case 0:
            values = values[:-1]
        case 1:
            values = [*values, b"more"]
        case 2:
            values = [dice.choice(odd) for _ in values]
        case _:
            values[dice.randrange(len(values)) : None] = [dice.choice(odd)] if values else []
    return [row(*values)]


def change_description(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    if kind != b"T":
        return flip(dice, kind, body)
    count = struct.unpack_from("!H", body)[0]
    kinds = [16, 17, 20, 23, 25, 1009, 1184, 1700, 2249, 2278, 3802, 99999]
    return [description(*[(dice.choice(["a", "name", ""]), dice.choice(kinds)) for _ in range(count)])]


def resize(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    length = len(body) + 4 + dice.choice([-5, -4, -1, 1, 4, 1 << 20, 1 << 30, -(1 << 31) - len(body) - 4])
    return [kind + struct.pack("!i", max(min(length, 2**31 - 1), -(2**31))) + body]


def insert(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    code = dice.choice([b"42501", b"08006", b"57P01", b"XX000", b"40001", b"28P01", b"PGR04", b"zzzzz", b""])
    odd = [
        error(dice.choice([b"x", b"x" * 60_000, b"x" * 2_000_000, b"\xff" * 99, b"a\nb"]), code),
        message(b"Z", dice.choice([b"I", b"T", b"E"])),
        message(b"G", b"\0\0\0"),
        message(b"H", b"\0\0\0"),
        message(b"W", b"\0\0\0"),
        message(b"C", b"SELECT 1\0"),
        message(b"1"),
        row(b"x"),
        description(("a", 25)),
        authentication(dice.choice([0, 3, 5, 10, 11, 12]), b"salt"),
        parameter("client_encoding", "LATIN1"),
        parameter("server_version", "9.0"),
        bytes(dice.randrange(256) for _ in range(dice.randint(1, 200))),
    ]
    one = dice.choice(odd)
    return dice.choice([[one, message(kind, body)], [message(kind, body), one], [one]])


def flood(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    one = dice.choice([error(b"psst", kind=b"N"), notification(b'{"op":"many"}'), notification(b"[" * 7000)])
    return [one * (400_000 // len(one)), message(kind, body)]


def scram(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    return [message(kind, body.replace(b"i=4096", b"i=" + dice.choice([b"0", b"100001", b"2147483647", b"x"])))]


def cut(dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    whole = message(kind, body)
    return [whole[: dice.randrange(len(whole))], END]


def drip(_dice: random.Random, kind: bytes, body: bytes) -> list[bytes]:
    return [piece for byte in message(kind, body)[:60] for piece in (bytes([byte]), PAUSE)] + [
        message(kind, body)[60:] or PAUSE
    ]


def lose(_dice: random.Random, _kind: bytes, _body: bytes) -> list[bytes]:
    return []


def swap(dice: random.Random, _kind: bytes, body: bytes) -> list[bytes]:
    return [message(bytes([dice.choice(b"123ACDEIKNRSTZnst")]), body)]


DAMAGES: tuple[Damage, ...] = (
    flip,
    change_row,
    change_row,
    change_description,
    resize,
    insert,
    insert,
    flood,
    scram,
    cut,
    drip,
    lose,
    swap,
)


def damaging(dice: random.Random, damage: Damage) -> Callable[[], Mutation]:
    """One kind of damage: to one message of each connection, or to several from there on."""

    def begin() -> Mutation:
        first, often = dice.choice([dice.randrange(25), dice.randrange(150)]), dice.random() < 0.5
        seen = 0

        def mutate(kind: bytes, body: bytes) -> list[bytes]:
            nonlocal seen
            seen += 1
            if seen == first or (often and seen > first and dice.random() < 0.3):
                return damage(dice, kind, body)
            return [message(kind, body)]

        return mutate

    return begin


async def work(session: Session) -> None:
    await session.read_roles([(Key("shop", "app"), "app"), (Key("shop", "other"), "postgres")])
    referenced = ReferencedNames(frozenset({"pg_monitor"}), frozenset({"work_mem"}), frozenset({"postgres"}))
    await session.read_references([referenced])
    await session.read_claims()
    await session.read_verifiers([10])
    await session.read_drop_states([(10, "")])


@pytest.mark.slow
async def test_a_session_raises_only_its_own_errors(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, unknown_types: list[int]
) -> None:
    monkeypatch.setattr(connection_module, "COMMAND_SECONDS", 2.0)
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 3.0)
    results: dict[str, int] = {}
    escaped: list[str] = []
    turns = anyio.Semaphore(AT_ONCE)

    async def attempt(number: int) -> None:
        dice = random.Random(SEED * 1_000_003 + number)
        damage = DAMAGES[number % len(DAMAGES)]
        mode = dice.choice([Mode.AUTO, Mode.WATCH, Mode.POLL, Mode.RESYNC])
        async with turns, proxying(own_postgres.host, own_postgres.port, damaging(dice, damage)) as proxy:
            endpoint = Endpoint.of(["127.0.0.1"], proxy.port, "postgres", SUPERUSER, own_postgres.password, "disable")
            ended = "in time"
            try:
                with anyio.fail_after(DEADLINE):
                    await run_session(
                        endpoint, "test", detection=mode, may_install=True, callbacks=ChangeCallbacks(), work=work
                    )
            except PgRoleError as error_:
                ended = error_.reason.value
                if len(error_.message) > 5000 or not error_.message.isprintable():
                    escaped.append(f"trial {number}, {damage.__name__}: {error_.message[:200]!r}")
            except Exception as error_:  # noqa: BLE001 -- what this is about
                escaped.append(f"trial {number}, {damage.__name__}, {mode}: {error_!r}")
            results[ended] = results.get(ended, 0) + 1

    with accounting(monkeypatch) as account:
        async with anyio.create_task_group() as tasks:
            for number in range(TRIALS):
                tasks.start_soon(attempt, number)
    unknown_types.clear()  # a damaged answer can name any type
    assert escaped == []
    assert results.get("in time", 0) > 0
    assert sum(results.values()) - results.get("in time", 0) > TRIALS // 10, results
    check_loop(account)


def check_loop(account: Account) -> None:
    assert account.longest < 0.25, f"{account.longest:.3f} s of CPU in one callback: {account.by}"


async def test_a_flood_of_others_notifications_neither_ends_the_session_nor_hides_a_change(
    own_postgres: PostgresServer,
) -> None:
    names: list[tuple[str, ...] | None] = []
    begun = anyio.Event()

    async def stay(_session: Session) -> None:
        begun.set()
        await anyio.sleep_forever()

    async def watch() -> None:
        endpoint = Endpoint(own_postgres.dsn())
        await run_session(
            endpoint, "test", detection=Mode.WATCH, may_install=True, callbacks=ChangeCallbacks(names.append), work=stay
        )

    async with connect(Endpoint(own_postgres.dsn()), "test") as admin, anyio.create_task_group() as tasks:
        await admin.execute("CREATE ROLE tenant LOGIN PASSWORD 'p'")
        tasks.start_soon(watch)
        await begun.wait()
        async with connect(Endpoint(own_postgres.dsn("tenant", password="p")), "test") as tenant:
            with anyio.fail_after(DEADLINE):
                for _ in range(25):
                    await tenant.execute(
                        "SELECT count(pg_notify('pgrole', '{\"op\":\"many\",\"n\":' || g || '}'))"
                        " FROM generate_series(1, 20000) AS s (g)"
                    )
                await admin.execute("CREATE ROLE drifted")
                while not any(some is not None and "drifted" in some for some in names):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
        assert names.count(None) < DEADLINE / 10 + 1
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("place", [0, -1])
async def test_an_idle_session_reports_why_a_connection_ended(own_postgres: PostgresServer, place: int) -> None:
    """Both connections: the one that writes, and the one that detects changes."""
    begun = anyio.Event()

    async def stay(_session: Session) -> None:
        begun.set()
        await anyio.sleep_forever()

    def leave() -> Mutation:
        return lambda kind, body: [message(kind, body)]

    async with proxying(own_postgres.host, own_postgres.port, leave) as proxy, anyio.create_task_group() as tasks:
        endpoint = Endpoint.of(["127.0.0.1"], proxy.port, "postgres", SUPERUSER, own_postgres.password, "disable")

        async def spoil() -> None:
            await begun.wait()
            proxy.writers[place].write(b"\0" * 100)

        tasks.start_soon(spoil)
        with anyio.fail_after(DEADLINE), pytest.raises(PgRoleError) as caught:
            await run_session(
                endpoint, "test", detection=Mode.WATCH, may_install=True, callbacks=ChangeCallbacks(), work=stay
            )
    assert "does not speak the PostgreSQL protocol" in caught.value.message
    if place == 0:
        assert caught.value.message.startswith("a connection to PostgreSQL ended: ")
