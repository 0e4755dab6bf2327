"""Every read, with every column of its answer poisoned in turn, raises only a PgRoleError, and only on its object.

The answers come from a real server and are changed to what a hostile server, or another version, could send.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, cast

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Role
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.apply import Dialect, script
from pgrole_controller.postgres.capabilities import Identity, identify, read_access
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.claims import Selection, list_claims
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.poll import Poller
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.status_claims import StatusClaims
from tests.cpu_time import within_a_callback

CLUSTER = "cluster-a"
NAMES = ("alpha", "beta", "gamma")
ASKED = [(Key("shop", name), name) for name in NAMES]
OWNERS = {name: Owner(CLUSTER, "shop", "ns-uid", name, f"uid-{name}") for name in NAMES}

#: Replacements for any value: of another type, or of the same type but impossible.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    1.5,
    "",
    "text",
    "x" * 1_000_000,
    b"",
    b"\xff\xfe",
    b"x" * 1_000_000,
    b"null",
    b"[]",
    b"{}",
    b"[{}]",
    b"[null]",
    b'{"": null, "d": [null]}',
    b'{"": {}}',
    b"[" * 100_000,
    b'{"a": ' * 100_000,
    b"9" * 10_000,
    [],
    [None],
    ["text"],
    [b"\xff"],
    [["one"]],
    [[1, 2]],
    datetime(9999, 12, 31),  # noqa: DTZ001 -- as asyncpg reads infinity
    {},
)

RowValues = dict[str, Any]
Rows = list[RowValues]
RowPoison = Callable[[RowValues], Rows]
Meddling = Callable[[str, Rows], Rows]


class PoisonedHome(NamedTuple):
    connection: Connection
    identity: Identity
    oids: tuple[int, ...]  # of NAMES


class Poisoned:
    """A connection whose answers are meddled with. Each real answer is fetched once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: dict[tuple[str, str], Rows] = {}
        self.meddle: Meddling = lambda _query, rows: rows

    async def fetch(self, query: str, *arguments: Any, timeout: float | None = None) -> Rows:  # noqa: ASYNC109
        asked = (query, json.dumps(arguments, default=str))
        if asked not in self._answers:
            answer = await self._connection.fetch(query, *arguments, timeout=timeout)
            self._answers[asked] = [dict(row) for row in answer]
        return self.meddle(query, [dict(row) for row in self._answers[asked]])

    async def fetchrow(self, query: str, *arguments: Any, timeout: float | None = None) -> RowValues | None:  # noqa: ASYNC109
        return next(iter(await self.fetch(query, *arguments, timeout=timeout)), None)

    async def execute(self, _query: str) -> str:
        return ""

    def transaction(self, **_options: bool) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def is_closed(self) -> bool:
        return False


class Read(NamedTuple):
    """`each`: its result is a list with one item for each of NAMES."""

    name: str
    run: Callable[[Connection, PoisonedHome], Awaitable[Any]]
    each: bool = False


def session(connection: Connection, home: PoisonedHome, status_claims: StatusClaims | None = None) -> Session:
    return Session(home.identity, SchemaState.PRESENT, CLUSTER, status_claims or DatabaseClaims(), connection)


async def compare(connection: Connection, home: PoisonedHome) -> None:
    poller = Poller(connection, anyio.Lock(), home.identity)
    poller._key = 1
    await poller.compare()
    poller._snapshot = None
    await poller.compare()


def remembered(home: PoisonedHome) -> StatusClaims:
    status_claims = StatusClaims().open(home.identity.system_identifier)
    plans = [Plan(name, oid=oid, owner=OWNERS[name]) for name, oid in zip(NAMES, home.oids, strict=True)]
    status_claims.record(plans, {})
    return status_claims


MENTIONED = [
    ReferencedNames(frozenset({"group_a"}), frozenset({"work_mem"}), frozenset({"postgres"}), frozenset({"*"})),
    ReferencedNames(frozenset({"group_b"}), frozenset({"plpgsql.variable_conflict"})),
]

READS = (
    # first, since it finds only statements of the last minute
    Read("suspects", lambda made, home: session(made, home).read_suspects(NAMES)),
    Read("roles", lambda made, home: session(made, home).read_roles(ASKED), each=True),
    Read("roles without schema", lambda made, home: session(made, home, remembered(home)).read_roles(ASKED), each=True),
    Read("references", lambda made, home: session(made, home).read_references(MENTIONED)),
    Read(
        "ends",
        lambda made, home: session(made, home).read_drop_states([(oid, "group_a") for oid in home.oids]),
        each=True,
    ),
    Read("verifiers", lambda made, home: session(made, home).read_verifiers(home.oids), each=True),
    Read("claims", lambda made, home: session(made, home).read_claims()),
    Read("listed claims", lambda made, _: list_claims(made, Selection())),
    Read("identity", lambda made, _: identify(made)),
    Read("access", lambda made, _: read_access(made)),
    Read("poll", compare),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(server: PostgresServer) -> AsyncIterator[PoisonedHome]:
    """Three roles that have something of everything, each with a session, and a session that mentioned all of them."""
    async with connect(Endpoint(server.dsn()), "test") as made, connect(Endpoint(server.dsn()), "other") as other:
        await install(made)
        await made.execute("CREATE ROLE group_a CREATEDB; CREATE ROLE group_b; GRANT group_a TO group_b")
        for name in NAMES:
            await made.execute(
                f"""
                CREATE ROLE {name} LOGIN PASSWORD 'p' VALID UNTIL '2030-01-01'; GRANT group_a, group_b TO {name};
                COMMENT ON ROLE {name} IS 'comment'; ALTER ROLE {name} SET search_path = a, "B c";
                ALTER ROLE {name} IN DATABASE postgres SET work_mem = '64MB';
                CREATE TABLE public.of_{name} (); ALTER TABLE public.of_{name} OWNER TO {name};
                INSERT INTO pgrole.claim (
                    role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid,
                    applied, drift_count, last_drift_at, last_drift_fields
                )
                SELECT '{name}', '{name}'::regrole, system_identifier, '{CLUSTER}', 'shop', 'ns-uid', '{name}',
                    'uid-{name}', 'sha256:x', 1, now(), '{{comment}}'
                FROM pg_control_system();
                INSERT INTO pgrole.claim (
                    role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid
                )
                VALUES ('former_{name}', 0, 1, '{CLUSTER}', 'shop', 'ns-uid', '{name}', 'uid-0');
                """
            )
        rows = await made.fetch("SELECT oid FROM pg_roles WHERE rolname = ANY ($1) ORDER BY rolname", list(NAMES))
        await other.execute("SET application_name = 'psql'")
        await other.execute("; ".join(f"GRANT group_a TO {name}" for name in NAMES))
        async with (
            connect(Endpoint(server.dsn("alpha", password="p")), "alpha"),
            connect(Endpoint(server.dsn("beta", password="p")), "beta"),
            connect(Endpoint(server.dsn("gamma", password="p")), "gamma"),
        ):
            yield PoisonedHome(made, await identify(made), tuple(row["oid"] for row in rows))


def spoil(value: object) -> Iterator[object]:
    """Yields the value with each part of it missing or replaced."""
    if isinstance(value, bytes):
        try:
            content = json.loads(value)
        except ValueError:
            return
        for spoilt in spoil(content):
            yield json.dumps(spoilt).encode()
    elif isinstance(value, dict):
        for key, one in value.items():
            rest = {name: item for name, item in value.items() if name != key}
            yield rest
            yield from ({**rest, key: other} for other in (None, 7, "text", [None], {}, *spoil(one)))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from ([*value[:place], other, *value[place + 1 :]] for other in (None, 7, {}, *spoil(one)))


def poisons(row: RowValues) -> Iterator[tuple[str, RowPoison]]:
    """Yields everything that is done to one row of an answer."""
    for column, value in row.items():
        for other in (*VALUES, *spoil(value)):
            yield f"{column} = {repr(other)[:80]}", partial(replaced, column=column, value=other)
        yield f"{column} left out", partial(left_out, column=column)
        yield f"{column} renamed", partial(left_out, column=column, renamed="renamed")
    for times in (0, 2, 1000):
        yield f"{times} times", partial(repeated, times=times)
    yield "no columns", partial(repeated, times=1, columns=False)


def replaced(row: RowValues, *, column: str, value: object) -> Rows:
    return [{**row, column: value}]


def left_out(row: RowValues, *, column: str, renamed: str = "") -> Rows:
    rest = {name: value for name, value in row.items() if name != column}
    return [{**rest, renamed: row[column]} if renamed else rest]


def repeated(row: RowValues, *, times: int, columns: bool = True) -> Rows:
    return [row if columns else {}] * times


def about(row: RowValues) -> object:
    """Returns what a row is about, in an answer about several."""
    if "is_named" in row:
        return row["name"].decode()
    return row.get("role") if "kind" not in row else (row["kind"], row["name"])


def place_of(row: RowValues, home: PoisonedHome) -> int | None:
    """Returns which of NAMES a row is about, or None if several share it."""
    subject = about(row)
    if subject is None:
        return None
    return NAMES.index(subject) if isinstance(subject, str) else home.oids.index(cast("int", subject))


def check_plan(name: str, observed: Observed, identity: Identity) -> None:
    """SQL can express the plan for the observed role, or the object is refused."""
    server = Server(identity.system_identifier, frozenset({"postgres"}), Address("db", 5432, "app", "require"))
    try:
        script(
            [decide(Desired(OWNERS[name], Role(name, login=True), adopt=True), observed, server, Policy())], Dialect()
        )
    except (PgRoleError, ValueError):  # applying reports a ValueError on the object
        return


@pytest.mark.parametrize("read", READS, ids=lambda read: read.name)
async def test_a_poisoned_answer_causes_only_an_error_of_its_object(home: PoisonedHome, read: Read) -> None:
    poisoned = Poisoned(home.connection)
    connection = cast("Connection", poisoned)
    questions: dict[str, Rows] = {}
    poisoned.meddle = lambda query, rows: questions.setdefault(query, rows)
    healthy = await read.run(connection, home)
    assert questions
    assert all(questions.values())
    for question, rows in questions.items():
        for row in {row.get("kind"): row for row in rows}.values():
            for what, poison in poisons(row):
                poisoned.meddle = partial(meddle, question=question, subject=about(row), poison=poison)
                try:
                    with within_a_callback(what):
                        result = await read.run(connection, home)
                except PgRoleError:
                    assert not read.each or place_of(row, home) is None, what
                    continue
                if read.each:
                    check_each(healthy, result, place_of(row, home), what)
                    for name, observed in zip(NAMES, result, strict=True):
                        if isinstance(observed, Observed):
                            check_plan(name, observed, home.identity)


def meddle(query: str, rows: Rows, *, question: str, subject: object, poison: RowPoison) -> Rows:
    if query != question:
        return rows
    return [one for row in rows for one in (poison(row) if about(row) == subject else [row])]


def check_each(healthy: list[Any], result: list[Any], poisoned: int | None, what: str) -> None:
    """Other objects must be read as without the poison. What they refer to may be poisoned for all of them."""
    for place, (before, now) in enumerate(zip(healthy, result, strict=True)):
        if poisoned is not None and place != poisoned:
            assert now == before, (place, what)
