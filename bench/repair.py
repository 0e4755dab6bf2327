"""Measures from the commit of a drift to the commit that repairs it, and the floor below which no controller could be.

All times are seconds of one clock, this machine's CLOCK_REALTIME. A drift begins when its COMMIT has returned to the
client. It is noticed when a second client receives the NOTIFY. It is repaired when the transaction that counted the
drift in the claim committed (track_commit_timestamp), so nothing polls while the controller works.
"""

import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from bench.drifts import Spread
from bench.floors import READ_ROLE, time_rounds
from bench.quantities import Quantiles
from bench.stand import BenchStand, Connection
from pgrole_controller.postgres.watch import CHANNEL, EVERYTHING, read_payload

#: Unrelated commits per second on a busy server.
BUSY_RATE = 200.0

_REPAIR_SECONDS = 30.0
_FLOOR_ROUNDS = 60
_FLOOR_ROLE = "bench_floor"

#: How often the role has drifted, and the time of the last repair.
_CLAIM = """
SELECT c.drift_count, extract(epoch FROM pg_xact_commit_timestamp(c.xmin))::float8 AS written
FROM pgrole.claim AS c WHERE c.role_name = $1
"""

#: Everything that can drift except the password; a role without an expiry may have had one.
_CONTENT = """
SELECT (to_jsonb(r) || jsonb_build_object(
    'rolvaliduntil', coalesce(r.rolvaliduntil, 'infinity'),
    'comment', shobj_description(r.oid, 'pg_authid'),
    'groups', (SELECT jsonb_agg(m.roleid ORDER BY m.roleid) FROM pg_auth_members AS m WHERE m.member = r.oid),
    'settings', (SELECT jsonb_agg(s ORDER BY s.setdatabase) FROM pg_db_role_setting AS s WHERE s.setrole = r.oid)
))::text
FROM pg_roles AS r WHERE r.rolname = $1
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians in milliseconds through a bare connection."""

    notify: float
    read: float
    alter: float

    @property
    def total(self) -> float:
        return self.notify + self.read + self.alter


@dataclass(frozen=True, slots=True)
class Repairs:
    """Many drifts: commit to repair, and its two parts, before and after the NOTIFY."""

    whole: Quantiles
    detection: Quantiles
    reaction: Quantiles


class _RepairListener:
    """Records each time that a notification named the role."""

    def __init__(self) -> None:
        self._expected = ""
        self._moments: list[float] = []
        self._heard = anyio.Event()

    def expect(self, name: str) -> None:
        self._expected, self._moments = name, []

    def receive(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        now, names = time.time(), read_payload(str(payload)).roles
        if names is EVERYTHING or self._expected in names:
            self._moments.append(now)
            self._heard.set()

    async def wait(self, times: int) -> float:
        """Waits for so many notifications; several may come at once. Returns the time of the last."""
        while len(self._moments) < times:
            self._heard = anyio.Event()
            await self._heard.wait()
        return self._moments[times - 1]


async def measure_floor(stand: BenchStand, pause: float) -> Floor:
    """Measures a NOTIFY received on another connection, one role read, and one ALTER ROLE committed, while the
    controller is idle.

    `pause`: seconds before each round, since a drift also finds processes asleep.
    """

    def alter(turn: int) -> Awaitable[object]:
        return client.execute(f"ALTER ROLE {_FLOOR_ROLE} {'NOCREATEDB' if turn % 2 else 'CREATEDB'}")

    async with stand.connect() as client, stand.connect() as listener:
        await client.execute(f"DROP ROLE IF EXISTS {_FLOOR_ROLE}; CREATE ROLE {_FLOOR_ROLE}")
        took = await time_rounds(
            client,
            listener,
            lambda: client.fetch(READ_ROLE, _FLOOR_ROLE),
            alter,
            rounds=_FLOOR_ROUNDS,
            pause=lambda: pause,
        )
        await client.execute(f"DROP ROLE {_FLOOR_ROLE}")
    return Floor(*(Quantiles.of(each).p50 for each in zip(*took, strict=True)))


#: Seconds within which a repair is noticed, too.
_BOTH_SECONDS = 0.5

#: Seconds over which the next drift is spread: longer than the watch pauses at any size, so that every phase occurs.
PHASES = 0.25


async def measure_repairs(
    stand: BenchStand, spread: Spread, roles: int, drifts: int, *, busy: bool, among: int | None = None
) -> Repairs:
    """Makes `drifts` drifts of random roles, one at a time, at any phase of the watch.

    `roles` may drift; `among` is the number of existing roles (None: the same). Raises AssertionError if a repair was
    held back, or a role differs afterwards.
    """
    whole, detection, reaction = [], [], []
    listener = _RepairListener()
    async with stand.connect() as client, stand.connect() as listening, _commits(stand, BUSY_RATE if busy else 0.0):
        await listening.add_listener(CHANNEL, listener.receive)
        for turn in range(drifts):
            began, heard, repaired = await _drift(client, listener, *await spread.draw(roles))
            whole.append(repaired - began)
            detection.append(heard - began)
            reaction.append(repaired - heard)
            stand.display.advance(f"{turn + 1} of {drifts} drifts")
            await anyio.sleep(_rest(among or roles) + random.uniform(0, PHASES))
    _check_no_contest(stand)
    return Repairs(Quantiles.of(whole), Quantiles.of(detection), Quantiles.of(reaction))


async def note_repairs(stand: BenchStand, spread: Spread, roles: int, took: list[float]) -> None:
    """Makes drifts of the first `roles` roles, one at a time, until cancelled; appends the seconds from commit to
    repair.
    """
    listener = _RepairListener()
    async with stand.connect() as client, stand.connect() as listening:
        await listening.add_listener(CHANNEL, listener.receive)
        while True:
            began, _, repaired = await _drift(client, listener, *await spread.draw(roles))
            took.append(repaired - began)
            await anyio.sleep(_rest(roles) + random.uniform(0, PHASES))


def _rest(roles: int) -> float:
    """Returns a pause longer than the watch's after a read, which grows with the roles, so that no drift delays the
    next.
    """
    return 0.08 + 1e-5 * roles


def _check_no_contest(stand: BenchStand) -> None:
    """Raises AssertionError after a contest, whose repairs are delayed on purpose."""
    contested = [
        record["object"] for record in stand.log_records("object is not ready") if record["reason"] == "Contested"
    ]
    if contested:
        raise AssertionError(f"repairs were held back as contested: {', '.join(sorted(set(contested)))}")


async def _drift(
    client: Connection, listener: _RepairListener, name: str, statement: str
) -> tuple[float, float, float]:
    """Returns when the drift was committed, noticed and repaired, after the repair was noticed too."""
    count, content = (await _claim(client, name))[0], await client.fetchval(_CONTENT, name)
    listener.expect(name)
    await client.execute(statement)
    began = time.time()
    with anyio.fail_after(_REPAIR_SECONDS):
        heard, counted, repaired = await listener.wait(1), count, 0.0
        while counted == count:
            # If the role was read for another reason, the drift and its repair are one notification, after both.
            with anyio.move_on_after(_BOTH_SECONDS):
                await listener.wait(2)
            counted, repaired = await _claim(client, name)
            await anyio.sleep(0.005)
    if counted != count + 1 or await client.fetchval(_CONTENT, name) != content:
        raise AssertionError(f"after {statement!r} the role is not as it was")
    return began, min(heard, repaired), repaired


async def _claim(client: Connection, name: str) -> tuple[int, float]:
    row = await client.fetchrow(_CLAIM, name)
    if row is None:
        raise AssertionError(f"role {name} has no claim")
    return row["drift_count"], row["written"]


@asynccontextmanager
async def _commits(stand: BenchStand, rate: float) -> AsyncIterator[None]:
    """Makes unrelated commits, `rate` per second, during the context."""
    if rate == 0:
        yield
        return
    async with stand.connect() as connection, anyio.create_task_group() as tasks:
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_noise (number int)")
        tasks.start_soon(_commit, connection, rate)
        yield
        tasks.cancel_scope.cancel()


async def _commit(connection: Connection, rate: float) -> None:
    due = time.monotonic()
    while True:
        await connection.execute("INSERT INTO bench_noise VALUES (1)")
        due += 1 / rate
        await anyio.sleep(max(0.0, due - time.monotonic()))
