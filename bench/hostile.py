"""Hostile PostgreSQL servers, and a tenant that attacks a server with everything a role with LOGIN may do.

`python -m bench.hostile` runs one server of each kind and writes their ports as JSON; `python -m bench.hostile DSN`
attacks as the DSN's role. Both run until they are ended, in processes of their own on one processor
(`yield_processor`): in reality hostile servers have their own machines, and only their effect on the controller is
measured.
"""

import json
import os
import struct
import sys
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import anyio
import asyncpg

from bench.neighbours import Serve, listening
from pgrole_controller.local.process import Process, reached, tied_to_parent

#: Bytes in one message of a server that floods.
LARGE = 20_000_000

_INTEGER = struct.Struct("!i")
_DRIP_SECONDS = 0.3
#: Seconds between two stored settings, which cost PostgreSQL itself some work.
_STORE_SECONDS = 0.5
_START_SECONDS = 60.0
_COMMAND = (sys.executable, "-m", "bench.hostile")


def yield_processor(pid: int = 0) -> None:
    """Lets this process (or `pid`) and its future children run only while nothing else wants to. Linux only.

    They also get a processor of their own if possible (`leave_processor`), because the kernel does not interrupt a long
    system call.
    """
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(pid, {_last_processor()})


def leave_processor() -> None:
    """Keeps this process and its future children off the attackers' processor."""
    others = os.sched_getaffinity(0) - {_last_processor()}
    if others:
        os.sched_setaffinity(0, others)


def _last_processor() -> int:
    return (os.cpu_count() or 1) - 1


def message(kind: bytes, body: bytes) -> bytes:
    return kind + _INTEGER.pack(len(body) + _INTEGER.size) + body


_LET_IN = message(b"R", _INTEGER.pack(0))
_PARAMETERS = b"".join(
    message(b"S", f"{name}\0{value}\0".encode())
    for name, value in {"server_version": "18.4", "client_encoding": "UTF8", "TimeZone": "UTC"}.items()
)
_AT_REST = message(b"Z", b"I")
GREETING = _LET_IN + _PARAMETERS + message(b"K", struct.pack("!ii", 1, 2)) + _AT_REST


async def read_startup(reader: StreamReader) -> bytes:
    (length,) = _INTEGER.unpack(await reader.readexactly(_INTEGER.size))
    return await reader.readexactly(length - _INTEGER.size)


async def read_message(reader: StreamReader) -> bytes:
    header = await reader.readexactly(1 + _INTEGER.size)
    return await reader.readexactly(_INTEGER.unpack(header[1:])[0] - _INTEGER.size)


def _words(severity: str, text: str) -> bytes:
    fields = {"S": severity, "V": severity, "C": "XX000", "M": text}
    return b"".join(f"{kind}{value}\0".encode() for kind, value in fields.items()) + b"\0"


def failure(text: str) -> bytes:
    """Returns an error message that ends the connection."""
    return message(b"E", _words("FATAL", text))


def notice(text: str) -> bytes:
    return message(b"N", _words("WARNING", text))


def notification(payload: str) -> bytes:
    return message(b"A", _INTEGER.pack(1) + f"pgrole\0{payload}\0".encode())


async def hang_after_greeting(reader: StreamReader, writer: StreamWriter) -> None:
    """Accepts the session and answers nothing."""
    await read_startup(reader)
    writer.write(GREETING)
    while await reader.read(1 << 16):
        pass


async def drip(reader: StreamReader, writer: StreamWriter) -> None:
    """Answers byte by byte."""
    await read_startup(reader)
    for byte in GREETING * 100:
        writer.write(bytes([byte]))
        await writer.drain()
        await anyio.sleep(_DRIP_SECONDS)


async def fail_at_length(reader: StreamReader, writer: StreamWriter) -> None:
    await read_startup(reader)
    writer.write(failure("no " * (LARGE // 3)))
    await writer.drain()


async def claim_a_length(reader: StreamReader, writer: StreamWriter) -> None:
    """Announces a message of two gigabytes, and sends it as fast as it is read."""
    await read_startup(reader)
    writer.write(b"R" + _INTEGER.pack(2**31 - 1))
    await _flood(writer, bytes(1 << 16))


async def flood_notices(reader: StreamReader, writer: StreamWriter) -> None:
    await read_startup(reader)
    writer.write(GREETING)
    await read_message(reader)
    await _flood(writer, notice("no " * (LARGE // 3)))


async def flood_notifications(reader: StreamReader, writer: StreamWriter) -> None:
    """Answers the first query endlessly."""
    await read_startup(reader)
    writer.write(GREETING)
    await read_message(reader)
    await _flood(writer, notification('{"op":"many"}') * 1000)


async def flood_parameters(reader: StreamReader, writer: StreamWriter) -> None:
    await read_startup(reader)
    await _flood(writer, message(b"S", b"application_name\0" + b"x" * 1000 + b"\0") * 100)


async def ask_to_hash(reader: StreamReader, writer: StreamWriter) -> None:
    """Requests SCRAM with an astronomical number of iterations."""
    await read_startup(reader)
    writer.write(message(b"R", _INTEGER.pack(10) + b"SCRAM-SHA-256\0\0"))
    first = (await read_message(reader)).decode()
    nonce = first.rpartition("r=")[2]
    text = f"r={nonce}hostile,s={b64encode(bytes(16)).decode()},i=2147483647"
    writer.write(message(b"R", _INTEGER.pack(11) + text.encode()))
    while await reader.read(1 << 16):
        pass


async def talk_nonsense(reader: StreamReader, writer: StreamWriter) -> None:
    """Accepts the session and answers queries with unrelated messages."""
    await read_startup(reader)
    writer.write(GREETING)
    while await reader.read(1 << 16):
        row = struct.pack("!hi", 1, 3) + b"\xff\xfe\xfd"
        writer.write(message(b"D", row) + message(b"T", b"\0\1\xff\0") + message(b"C", b"\xc3\x28\0") + _AT_REST)


async def _flood(writer: StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()


SERVERS: Mapping[str, Serve] = {
    "hangs": hang_after_greeting,
    "drips": drip,
    "fails-at-length": fail_at_length,
    "claims-a-length": claim_a_length,
    "notices": flood_notices,
    "notifications": flood_notifications,
    "parameters": flood_parameters,
    "hashes": ask_to_hash,
    "nonsense": talk_nonsense,
}


@asynccontextmanager
async def hostile_servers(kinds: Sequence[str] = tuple(SERVERS)) -> AsyncIterator[dict[str, int]]:
    """Yields their ports by kind."""
    async with AsyncExitStack() as stack:
        yield {kind: await stack.enter_async_context(listening(SERVERS[kind])) for kind in kinds}


#: Statements with which a role stores settings for itself that are hard to read.
SETTINGS: Mapping[str, str] = {
    "elements": "SELECT set_config('search_path', repeat('a,', 1500000) || 'a', false)",
    "quoted-elements": """SELECT set_config('search_path', repeat('"a""b",', 100000) || 'a', false)""",
    "half-quoted": """SELECT set_config('search_path', 'a"b', false)""",
    "spaces": "SELECT set_config('search_path', 'a' || repeat(' ', 1500000) || ',b', false)",
    "giant": "SELECT set_config('search_path', repeat('a', 185000000), false)",
}
#: Leaves the session as it was: since 18 PostgreSQL reports search_path to the client, which would read it all.
_STORE = """
DO $$ BEGIN
    PERFORM {};
    ALTER ROLE CURRENT_USER SET search_path FROM CURRENT;
    PERFORM set_config('search_path', 'public', false);
END $$
"""


async def store(dsn: str, kind: str) -> None:
    """Runs the statements once."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET client_min_messages = error")
        await connection.execute(_STORE.format(SETTINGS[kind].removeprefix("SELECT ")))
    finally:
        await connection.close()


def payloads(names: Sequence[str]) -> dict[str, list[str]]:
    """Payloads of the floods: names of declared roles, the payload for all roles, and junk."""
    return {
        "many": ['{"op":"many"}'],
        "names": [json.dumps({"op": "update", "oid": 16384, "name": name, "was": None}) for name in names],
        "junk": ["x" * 7900, "[" * 7900, json.dumps({"op": "update", "name": "x" * 7800})],
    }


async def flood(dsn: str, payloads: Sequence[str]) -> NoReturn:
    """Sends NOTIFY as fast as PostgreSQL accepts it, until cancelled. All differ, since equal ones would be merged."""
    connection = await asyncpg.connect(dsn)
    try:
        while True:
            await connection.execute(
                "SELECT pg_notify('pgrole', p || repeat(' ', n)) "
                "FROM unnest($1::text[]) AS p, generate_series(1, 90) AS n",
                payloads,
            )
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close(timeout=5)


@asynccontextmanager
async def serving_hostile(folder: Path) -> AsyncIterator[dict[str, int]]:
    """Runs one server of each kind in a separate process; yields their ports."""
    process = Process("hostile servers", tied_to_parent([*_COMMAND]), folder / "hostile.log")
    ports: dict[str, int] = {}

    async def is_told() -> bool:
        for line in process.log.read_text(encoding="utf-8").splitlines():
            if line.startswith("{"):
                ports.update(json.loads(line))
        return bool(ports)

    await process.start()
    try:
        if not await reached(is_told, _START_SECONDS):
            raise process.failure("did not start in time")
        yield ports
    finally:
        await process.kill()


@asynccontextmanager
async def attacking(dsn: str, folder: Path) -> AsyncIterator[None]:
    """Runs a tenant's attacks in a separate process."""
    process = Process("attack", tied_to_parent([*_COMMAND, dsn]), folder / "attack.log")
    await process.start()
    try:
        yield
        if not process.running:
            raise process.failure("ended")
    finally:
        await process.kill()


async def _serve() -> None:
    async with hostile_servers() as ports:
        print(json.dumps(ports), flush=True)
        await anyio.sleep_forever()


async def _attack(dsn: str) -> None:
    async with anyio.create_task_group() as tasks:
        for some in payloads([f"bench_{number}" for number in range(10)]).values():
            tasks.start_soon(flood, dsn, some)
        tasks.start_soon(_store_always, dsn)


async def _store_always(dsn: str) -> NoReturn:
    while True:
        for kind in SETTINGS:
            await store(dsn, kind)
            await anyio.sleep(_STORE_SECONDS)


def main() -> None:
    yield_processor()
    if sys.argv[1:]:
        anyio.run(_attack, sys.argv[1])
    else:
        anyio.run(_serve)


if __name__ == "__main__":
    main()
