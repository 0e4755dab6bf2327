"""From the commit of a drift to the commit that repairs it, and the floor: what nobody could do without.

All moments are of one clock, CLOCK_REALTIME of this machine, in seconds. A drift begins when its COMMIT has returned
to the client; it is noticed when a second client hears the NOTIFY; it is repaired when PostgreSQL says that the
transaction committed which repaired it (track_commit_timestamp): the one that counted the drift in the claim. So nobody
polls while the controller works.
"""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import anyio

from bench.drifts import Spread
from bench.observe import Quantiles
from bench.stand import Connection, Stand
from pgrole_controller.postgres.watch import CHANNEL, EVERYTHING, read_names

#: Unrelated commits a second when the server is busy.
BUSY_RATE = 200.0

_REPAIR_SECONDS = 30.0
_FLOOR_ROUNDS = 60
_FLOOR_CHANNEL = "bench_floor"
_FLOOR_ROLE = "bench_floor"

#: How often the role has drifted, and the moment of the last repair.
_CLAIM = """
SELECT c.drift_count, extract(epoch FROM pg_xact_commit_timestamp(c.xmin))::float8 AS written
FROM pgrole.claim AS c WHERE c.role_name = $1
"""

#: All that can drift but the password; a role without a date may have had one.
_CONTENT = """
SELECT (to_jsonb(r) || jsonb_build_object(
    'rolvaliduntil', coalesce(r.rolvaliduntil, 'infinity'),
    'comment', shobj_description(r.oid, 'pg_authid'),
    'groups', (SELECT jsonb_agg(m.roleid ORDER BY m.roleid) FROM pg_auth_members AS m WHERE m.member = r.oid),
    'settings', (SELECT jsonb_agg(s ORDER BY s.setdatabase) FROM pg_db_role_setting AS s WHERE s.setrole = r.oid)
))::text
FROM pg_roles AS r WHERE r.rolname = $1
"""
_READ = "SELECT r.*, shobj_description(r.oid, 'pg_authid') FROM pg_roles AS r WHERE r.rolname = $1"


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
    """Of many drifts: commit to repair, and its two parts, before and after the NOTIFY."""

    whole: Quantiles
    detection: Quantiles
    reaction: Quantiles


class _Listener:
    """Notes when a role was heard of, each time."""

    def __init__(self) -> None:
        self._expected = ""
        self._moments: list[float] = []
        self._heard = anyio.Event()

    def expect(self, name: str) -> None:
        self._expected, self._moments = name, []

    def receive(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        now, names = time.time(), read_names(str(payload))
        if names is EVERYTHING or self._expected in names:
            self._moments.append(now)
            self._heard.set()

    async def wait(self, times: int) -> float:
        """Until it was heard of so often. Several may come at once."""
        while len(self._moments) < times:
            self._heard = anyio.Event()
            await self._heard.wait()
        return self._moments[times - 1]


async def measure_floor(stand: Stand, pause: float) -> Floor:
    """NOTIFY to another connection and heard there, one role read, one ALTER ROLE committed; the controller rests.

    `pause`, in seconds, before each round: a drift, too, finds processes that have slept.
    """
    took: list[tuple[float, ...]] = []
    heard = anyio.Event()
    async with stand.connect() as hand, stand.connect() as listener:
        await listener.add_listener(_FLOOR_CHANNEL, lambda *_: heard.set())
        await hand.execute(f"DROP ROLE IF EXISTS {_FLOOR_ROLE}; CREATE ROLE {_FLOOR_ROLE}")
        for turn in range(_FLOOR_ROUNDS):
            heard = anyio.Event()
            await anyio.sleep(pause)
            moments = [time.perf_counter()]
            await hand.execute(f"NOTIFY {_FLOOR_CHANNEL}, '{turn}'")
            await heard.wait()
            moments.append(time.perf_counter())
            await hand.fetch(_READ, _FLOOR_ROLE)
            moments.append(time.perf_counter())
            await hand.execute(f"ALTER ROLE {_FLOOR_ROLE} {'NOCREATEDB' if turn % 2 else 'CREATEDB'}")
            moments.append(time.perf_counter())
            took.append(tuple(end - start for start, end in pairwise(moments)))
        await hand.execute(f"DROP ROLE {_FLOOR_ROLE}")
    return Floor(*(Quantiles.of(each).p50 for each in zip(*took, strict=True)))


#: Seconds over which the next drift is spread: more than the watch looks away at any size, so that any phase is met.
PHASES = 0.25


async def measure_repairs(
    stand: Stand, spread: Spread, roles: int, drifts: int, *, busy: bool, among: int | None = None
) -> Repairs:
    """`drifts` drifts of roles at random, one at a time, at any phase of the watch.

    `roles` are those that may drift, `among` all that there are (None: as many). Raises AssertionError when a repair
    was held back, or a role is not as it was.
    """
    whole, detection, reaction = [], [], []
    listener = _Listener()
    async with stand.connect() as hand, stand.connect() as listening, _commits(stand, BUSY_RATE if busy else 0.0):
        await listening.add_listener(CHANNEL, listener.receive)
        for turn in range(drifts):
            began, heard, repaired = await _drift(hand, listener, *await spread.draw(roles))
            whole.append(repaired - began)
            detection.append(heard - began)
            reaction.append(repaired - heard)
            stand.display.advance(f"{turn + 1} of {drifts} drifts")
            await anyio.sleep(_rest(among or roles) + random.uniform(0, PHASES))
    _check_no_contest(stand)
    return Repairs(Quantiles.of(whole), Quantiles.of(detection), Quantiles.of(reaction))


async def note_repairs(stand: Stand, spread: Spread, roles: int, took: list[float]) -> None:
    """Drifts of the first `roles` roles, one at a time, until cancelled: appends seconds from commit to repair."""
    listener = _Listener()
    async with stand.connect() as hand, stand.connect() as listening:
        await listening.add_listener(CHANNEL, listener.receive)
        while True:
            began, _, repaired = await _drift(hand, listener, *await spread.draw(roles))
            took.append(repaired - began)
            await anyio.sleep(_rest(roles) + random.uniform(0, PHASES))


def _rest(roles: int) -> float:
    """Longer than the watch looks away after a look, which grows with the roles: one drift shall not delay the next."""
    return 0.08 + 1e-5 * roles


def _check_no_contest(stand: Stand) -> None:
    """A repair that was held back says nothing about how fast one is."""
    contested = [said["object"] for said in stand.said("object is not ready") if said["reason"] == "Contested"]
    if contested:
        raise AssertionError(f"repairs were held back as contested: {', '.join(sorted(set(contested)))}")


async def _drift(hand: Connection, listener: _Listener, name: str, statement: str) -> tuple[float, float, float]:
    """When it was committed, heard of and repaired. Returns when the repair has been heard of, too."""
    count, content = (await _claim(hand, name))[0], await hand.fetchval(_CONTENT, name)
    listener.expect(name)
    await hand.execute(statement)
    began = time.time()
    with anyio.fail_after(_REPAIR_SECONDS):
        heard = await listener.wait(1)
        await listener.wait(2)
        while True:
            counted, repaired = await _claim(hand, name)
            if counted > count:
                break
            await anyio.sleep(0.005)
    if counted != count + 1 or await hand.fetchval(_CONTENT, name) != content:
        raise AssertionError(f"after {statement!r} the role is not as it was")
    return began, heard, repaired


async def _claim(hand: Connection, name: str) -> tuple[int, float]:
    row = await hand.fetchrow(_CLAIM, name)
    if row is None:
        raise AssertionError(f"role {name} has no claim")
    return row["drift_count"], row["written"]


@asynccontextmanager
async def _commits(stand: Stand, rate: float) -> AsyncIterator[None]:
    """While this lasts somebody commits what is of no concern, `rate` times a second."""
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
