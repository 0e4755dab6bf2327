"""sql/database/20_leader.sql and postgres/fence: only one of two candidates writes, in whatever order they arrive."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.diff import Create, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan, ReassignOwned
from pgrole_controller.core.role import Role
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.apply import Dialect, apply_plans
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.fence import (
    Candidate,
    Fence,
    NotLeading,
    Unconfirmed,
    is_another_leading,
    lead_while_away,
    take_lead,
)
from pgrole_controller.postgres.reassign import reassign_owned
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.status_claims import StatusClaims

DEADLINE = 60.0
HERE = "cluster/pgrole-system/pgrole-controller"
OWNER = Owner("cluster", "shop", "ns-uid", "app", "uid-1")


_WAITING = """
SELECT count(DISTINCT l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE NOT l.granted AND a.datname = current_database()
"""


async def at_once() -> None:
    pass


class FencedProcess:
    """One candidate with its own connection. `confirm` is called between the two steps."""

    def __init__(self, connection: Connection, holder: str, installation: str = HERE) -> None:
        self.connection = connection
        self.leading = True
        self.away = 0.0  # for how many seconds Kubernetes does not answer
        self.enforced = False
        self.confirm: Callable[[], Awaitable[None]] = at_once
        self._candidate = Candidate(
            installation,
            holder,
            lambda: self.leading,
            at_once,
            lambda: self.confirm(),
            lambda: self.away,
            self.note_enforced,
        )

    def note_enforced(self) -> None:
        self.enforced = True

    async def lead_while_away(self) -> Fence | None:
        return await lead_while_away(self.connection, self._candidate, guarded=True)

    async def lead(self, *, guarded: bool = True, fencing: bool = True) -> Fence:
        return await take_lead(self.connection, self._candidate, guarded=guarded, fencing=fencing)

    async def create(self, fence: Fence, name: str) -> PgRoleError | None:
        plan = Plan(role_name=name, seen_as=name, changes=(Create(Role(name)),), owner=OWNER)
        (failure,) = await apply_plans(
            self.connection, [plan], Dialect(fence=fence, claims=DatabaseClaims(guarded=fence.guarded))
        )
        return failure


Join = Callable[..., Awaitable[FencedProcess]]


@pytest_asyncio.fixture(loop_scope="session")
async def join(database: str) -> AsyncIterator[Join]:
    async with AsyncExitStack() as stack:

        async def join(holder: str, installation: str = HERE) -> FencedProcess:
            connection = await stack.enter_async_context(connect(Endpoint(database), holder))
            await install(connection)
            return FencedProcess(connection, holder, installation)

        yield join


async def has_role(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name))


@asynccontextmanager
async def turn_taken(database: str) -> AsyncIterator[None]:
    """Another transaction holds the lock, so that the next ones wait."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pgrole.lock_changes()")
            yield
    finally:
        await connection.close()


async def wait_for_waiting(connection: Connection, count: int) -> None:
    """Waits until this many backends wait for a lock of this database."""

    async def wait() -> bool:
        return bool(await connection.fetchval(_WAITING) == count)

    assert await reached(wait, DEADLINE)


@pytest.mark.parametrize("guarded", [True, False])
async def test_the_former_leaders_number_is_refused(join: Join, guarded: bool) -> None:
    one, two = await join("one"), await join("two")
    old = await one.lead(guarded=guarded)
    await old.check(one.connection)
    new = await two.lead(guarded=guarded)
    assert old.number is not None
    assert new.number is not None
    assert new.number > old.number
    await new.check(two.connection)
    with pytest.raises(Transient) as refused:
        await old.check(one.connection)
    assert is_another_leading(refused.value)
    assert refused.value.reason is Reason.PROGRESSING


async def test_a_former_leaders_transaction_fails_as_a_whole(join: Join) -> None:
    one, two = await join("one"), await join("two")
    old = await one.lead()
    await two.lead()
    with pytest.raises(Transient) as refused:
        await one.create(old, "fenced_off")
    assert is_another_leading(refused.value)
    assert not await has_role(two.connection, "fenced_off")
    assert await two.connection.fetchval("SELECT count(*) FROM pgrole.claim") == 0


async def test_a_leader_that_waits_for_the_lock_while_another_takes_the_lead_changes_nothing(
    join: Join, database: str
) -> None:
    one, two, watcher = await join("one"), await join("two"), await join("watcher")
    old = await one.lead()
    ends: list[BaseException | None] = []

    async def lead() -> None:
        await two.lead()

    async def create() -> None:
        try:
            ends.append(await one.create(old, "fenced_off"))
        except PgRoleError as error:
            ends.append(error)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, turn_taken(database):
            tasks.start_soon(lead)
            await wait_for_waiting(watcher.connection, 1)
            tasks.start_soon(create)
            await wait_for_waiting(watcher.connection, 2)
    (end,) = ends
    assert end is not None
    assert is_another_leading(end)
    assert not await has_role(watcher.connection, "fenced_off")


async def test_another_leads_only_after_the_leaders_transaction_ends(join: Join, database: str) -> None:
    one, two = await join("one"), await join("two")
    old = await one.lead()
    led = anyio.Event()

    async def lead() -> None:
        await two.lead()
        led.set()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, one.connection.transaction():
            await one.connection.execute("SELECT pgrole.lock_changes()")
            assert old.statement is not None
            await one.connection.execute(old.statement)
            tasks.start_soon(lead)
            watcher = await join("watcher")
            await wait_for_waiting(watcher.connection, 1)
            assert not led.is_set()


async def test_a_transaction_completes_although_its_worker_is_cancelled(join: Join, database: str) -> None:
    one, watcher = await join("one"), await join("watcher")
    fence = await one.lead()
    ended, cancelled = anyio.Event(), anyio.CancelScope()

    async def create() -> None:
        with cancelled:
            await one.create(fence, "carried_out")
        ended.set()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, turn_taken(database):
            tasks.start_soon(create)
            await wait_for_waiting(watcher.connection, 1)
            cancelled.cancel()
            await wait_for_waiting(watcher.connection, 1)
            assert not ended.is_set()
    assert await has_role(watcher.connection, "carried_out")
    await watcher.connection.execute("DROP ROLE carried_out")


async def test_the_candidate_that_draws_later_leads_whatever_the_order_of_the_rest(join: Join) -> None:
    one, two = await join("one"), await join("two")
    drawn, go_on = anyio.Event(), anyio.Event()
    ends: list[BaseException] = []

    async def wait() -> None:
        drawn.set()
        await go_on.wait()

    async def lead_late() -> None:
        try:
            await one.lead()
        except PgRoleError as error:
            ends.append(error)

    one.confirm = wait
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead_late)
            await drawn.wait()
            new = await two.lead()
            go_on.set()
    (end,) = ends
    assert is_another_leading(end)
    await new.check(two.connection)


async def test_a_candidate_that_is_not_confirmed_does_not_take_the_lead(join: Join) -> None:
    one, two = await join("one"), await join("two")

    async def lost() -> None:
        raise NotLeading

    two.confirm = lost
    old = await one.lead()
    with pytest.raises(NotLeading):
        await two.lead()
    await old.check(one.connection)


async def test_a_second_session_of_the_leader_does_not_end_the_first(join: Join) -> None:
    one, again = await join("one"), await join("one")
    first = await one.lead()
    second = await again.lead()
    await first.check(one.connection)
    await second.check(again.connection)


async def test_each_installation_has_its_own_leader(join: Join) -> None:
    here, there = await join("one"), await join("two", "cluster/elsewhere/pgrole-controller")
    ours, theirs = await here.lead(), await there.lead()
    await ours.check(here.connection)
    await theirs.check(there.connection)
    assert await here.connection.fetchval("SELECT count(*) FROM pgrole.leader") == 2


async def test_a_number_is_not_drawn_twice_even_if_the_schema_was_dropped(join: Join) -> None:
    one, two = await join("one"), await join("two")
    old = await one.lead()
    await two.connection.execute("DROP SCHEMA pgrole CASCADE")
    await install(two.connection)
    new = await two.lead()
    await new.check(two.connection)
    with pytest.raises(Transient) as refused:
        await old.check(one.connection)
    assert is_another_leading(refused.value)


async def test_a_number_drawn_before_the_schema_was_dropped_does_not_take_the_lead(join: Join) -> None:
    one, two = await join("one"), await join("two")
    new: list[Fence] = []

    async def meanwhile() -> None:
        await two.connection.execute("DROP SCHEMA pgrole CASCADE")
        await install(two.connection)
        new.append(await two.lead())

    one.confirm = meanwhile
    with pytest.raises(Transient) as refused:
        await one.lead()
    assert is_another_leading(refused.value)
    await new[0].check(two.connection)


async def test_no_transaction_is_open_while_the_lease_is_confirmed(join: Join) -> None:
    one, watcher = await join("one"), await join("watcher")
    pid = await one.connection.fetchval("SELECT pg_backend_pid()")
    states: list[str] = []

    async def look() -> None:
        states.append(await watcher.connection.fetchval("SELECT state FROM pg_stat_activity WHERE pid = $1", pid))

    one.confirm = look
    await one.lead()
    assert states == ["idle"]


async def test_taking_the_lead_and_keeping_it_wait_for_no_standby(own_postgres: PostgresServer) -> None:
    async with connect(Endpoint(own_postgres.dsn()), "one") as connection:
        await install(connection)
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
        await connection.execute("SELECT pg_reload_conf()")

        async def is_so() -> bool:
            return bool(await connection.fetchval("SELECT current_setting('synchronous_standby_names')") == "missing")

        assert await reached(is_so, DEADLINE)
        with anyio.fail_after(DEADLINE / 2):
            fence = await FencedProcess(connection, "one").lead()
            await fence.beat(connection)
            away = FencedProcess(connection, "one")
            away.away = 60.0
            assert await away.lead_while_away() is not None
        assert await connection.fetchval("SHOW synchronous_commit") == "on"


async def test_a_process_that_knows_it_no_longer_leads_sends_nothing(join: Join) -> None:
    one = await join("one")
    fence = await one.lead()
    one.leading = False
    with pytest.raises(NotLeading):
        await one.create(fence, "fenced_off")
    with pytest.raises(NotLeading):
        await fence.check(one.connection)
    assert not await has_role(one.connection, "fenced_off")


async def test_the_former_leader_reassigns_nothing(join: Join, database: str) -> None:
    one, two = await join("one"), await join("two")
    old = await one.lead()
    await two.lead()
    await two.connection.execute(
        "CREATE ROLE leaver; CREATE ROLE stayer; CREATE TABLE public.held (); ALTER TABLE public.held OWNER TO leaver"
    )
    try:
        oid = await two.connection.fetchval("SELECT 'leaver'::regrole::oid")
        with pytest.raises(PgRoleError, match="another process leads"):
            await reassign_owned(Endpoint(database), ReassignOwned("leaver", oid, "stayer", terminate=False), fence=old)
        assert await two.connection.fetchval("SELECT tableowner FROM pg_tables WHERE tablename = 'held'") == "leaver"
    finally:
        await two.connection.execute("DROP TABLE public.held; DROP ROLE leaver, stayer")


async def test_without_a_schema_only_the_local_check_of_the_lead_applies(join: Join) -> None:
    one = await join("one")
    await one.connection.execute("DROP SCHEMA pgrole CASCADE")
    confirmed: list[bool] = []

    async def confirm() -> None:
        confirmed.append(True)

    one.confirm = confirm
    fence = await one.lead(fencing=False)
    assert (fence.number, confirmed) == (None, [True])
    await fence.check(one.connection)
    one.leading = False
    plan = Plan(role_name="fenced_off", seen_as="fenced_off", changes=(Create(Role("fenced_off")),), owner=OWNER)
    with pytest.raises(NotLeading):
        await apply_plans(one.connection, [plan], Dialect(fence=fence, claims=StatusClaims().open(1)))
    assert not await has_role(one.connection, "fenced_off")


async def test_a_role_without_privileges_cannot_call_the_functions(join: Join, database: str) -> None:
    one = await join("one")
    fence = await one.lead()
    await one.connection.execute("CREATE ROLE nobody_special")
    try:
        for call in (f"draw_number('{HERE}')", f"lead('{HERE}', 9, 'thief')", f"check_lead('{HERE}', 1)"):
            async with one.connection.transaction():
                await one.connection.execute("SET LOCAL ROLE nobody_special")
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with one.connection.transaction():
                        await one.connection.execute(f"SELECT pgrole.{call}")
        await fence.check(one.connection)
    finally:
        await one.connection.execute("DROP ROLE nobody_special")


async def test_no_function_is_called_once_another_role_owns_the_schema(join: Join) -> None:
    one = await join("one")
    fence = await one.lead()
    await one.connection.execute("CREATE ROLE tenant; ALTER SCHEMA pgrole OWNER TO tenant")
    try:
        with pytest.raises(Transient, match="not trusted"):
            await fence.check(one.connection)
        with pytest.raises(Transient, match="not trusted"):
            await one.lead()
    finally:
        await one.connection.execute("DROP SCHEMA pgrole CASCADE; DROP ROLE tenant")


SILENT = "UPDATE pgrole.leader SET heartbeat = clock_timestamp() - interval '15.1 s'"


class TestWithoutKubernetes:
    """Who leads a database while the Lease cannot be read."""

    async def test_a_leader_with_a_recent_heartbeat_is_not_replaced(self, join: Join) -> None:
        one, two = await join("one"), await join("two")
        fence = await one.lead()
        two.leading, two.away = False, 3600.0
        assert await two.lead_while_away() is None
        await one.connection.execute(SILENT)
        await fence.beat(one.connection)
        assert await two.lead_while_away() is None
        assert not two.enforced

    async def test_a_silent_leader_is_replaced_and_can_no_longer_change_anything(self, join: Join) -> None:
        one, two, three = await join("one"), await join("two"), await join("three")
        old = await one.lead()
        await one.connection.execute(SILENT)
        for other in (two, three):
            other.leading, other.away = False, 15.1
        new = await two.lead_while_away()
        assert new is not None
        assert two.enforced
        assert await three.lead_while_away() is None
        with pytest.raises(NotLeading):
            await old.beat(one.connection)
        with pytest.raises(Transient) as refused:
            await one.create(old, "away_old")
        assert is_another_leading(refused.value)
        await new.beat(two.connection)

    async def test_a_process_that_lost_kubernetes_only_briefly_does_not_lead(self, join: Join) -> None:
        one, two = await join("one"), await join("two")
        await one.lead()
        two.leading = False
        for heartbeat in ("NULL", "clock_timestamp() - interval '1 hour'"):
            await one.connection.execute(f"UPDATE pgrole.leader SET heartbeat = {heartbeat}")
            two.away = 14.0
            assert await two.lead_while_away() is None
        two.away = 15.1
        assert await two.lead_while_away() is not None

    async def test_a_leader_whose_heartbeat_is_in_the_future_is_replaced(self, join: Join) -> None:
        one, two = await join("one"), await join("two")
        await one.lead()
        two.leading, two.away = False, 15.1
        await one.connection.execute("UPDATE pgrole.leader SET heartbeat = clock_timestamp() + interval '1 hour'")
        assert await two.lead_while_away() is not None

    async def test_a_database_that_no_process_ever_led_is_not_taken(self, join: Join) -> None:
        one = await join("one")
        one.leading, one.away = False, 3600.0
        assert await one.lead_while_away() is None
        assert await one.connection.fetchval("SELECT count(*) FROM pgrole.leader") == 0

    async def test_the_last_leader_continues_with_its_number_in_another_session(self, join: Join) -> None:
        one, again = await join("one"), await join("one")
        fence = await one.lead()
        again.leading, again.away = False, 11.0
        resumed = await again.lead_while_away()
        assert resumed is not None
        assert resumed.number == fence.number

    async def test_the_holder_of_the_lease_outranks_a_process_with_a_heartbeat(self, join: Join) -> None:
        one, two = await join("one"), await join("two")
        await one.lead()
        await one.connection.execute(SILENT)
        two.leading, two.away = False, 15.1
        enforcing = await two.lead_while_away()
        assert enforcing is not None
        leading = await one.lead()
        assert (leading.number or 0) > (enforcing.number or 0)
        with pytest.raises(NotLeading):
            await enforcing.beat(two.connection)
        await leading.beat(one.connection)

    async def test_only_one_of_several_simultaneous_candidates_leads(self, join: Join, database: str) -> None:
        one, *others = [await join(name) for name in ("one", "two", "three", "four")]
        await one.lead()
        await one.connection.execute(SILENT)
        fences: list[Fence | None] = []

        async def try_to_lead(other: FencedProcess) -> None:
            fences.append(await other.lead_while_away())

        async with anyio.create_task_group() as tasks, turn_taken(database):
            for other in others:
                other.leading, other.away = False, 20.0
                tasks.start_soon(try_to_lead, other)
            await wait_for_waiting(one.connection, len(others))
        assert len(fences) == len(others)
        assert len([fence for fence in fences if fence is not None]) == 1

    async def test_a_plan_decided_with_the_lease_is_not_applied_without_it(self, join: Join) -> None:
        one = await join("one")
        fence = await one.lead()
        one.leading, one.away = False, 11.0
        failure = await one.create(fence, "away_confirmed")
        assert isinstance(failure, Unconfirmed)
        assert not await has_role(one.connection, "away_confirmed")
        one.away = 0.0
        with pytest.raises(NotLeading):
            await one.create(fence, "away_confirmed")

    @pytest.mark.parametrize(
        "changed",
        [
            "applied = 'another'",
            "object_generation = 4",
            "server_uid = 'x'",
            "server_generation = 1",
            "released_at = now()",
        ],
    )
    async def test_a_drift_is_repaired_only_if_the_claim_matches_what_is_known(self, join: Join, changed: str) -> None:
        one = await join("one")
        fence = await one.lead()
        known = Generations(3, "server", 5)
        name = f"away_{abs(hash(changed))}"
        plan = Plan(
            role_name=name, seen_as=name, changes=(Create(Role(name)),), owner=OWNER, applied="digest", acted_on=known
        )
        assert await apply_plans(one.connection, [plan], Dialect(fence=fence, claims=DatabaseClaims(guarded=True))) == [
            None
        ]
        try:
            one.leading, one.away = False, 11.0
            oid = await one.connection.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
            claim = Claim(name, oid, 0, OWNER, "digest", generations=known)
            drift = Plan(
                role_name=name,
                seen_as=name,
                oid=oid,
                claim=claim,
                changes=(SetAttribute(name, "createdb", True),),
            )
            enforcing = Dialect(fence=fence, claims=DatabaseClaims(guarded=True), enforcing=True)
            await one.connection.execute(f"UPDATE pgrole.claim SET {changed} WHERE role_name = '{name}'")
            (failure,) = await apply_plans(one.connection, [drift], enforcing)
            assert failure is not None
            assert failure.reason is Reason.PROGRESSING
            await one.connection.execute(
                "UPDATE pgrole.claim SET applied = 'digest', object_generation = 3, server_uid = 'server', "
                f"server_generation = 5, released_at = NULL WHERE role_name = '{name}'"
            )
            assert await apply_plans(one.connection, [drift], enforcing) == [None]
        finally:
            await one.connection.execute(f"DROP ROLE \"{name}\"; DELETE FROM pgrole.claim WHERE role_name = '{name}'")


@pytest.mark.parametrize("value", ["on", "true", "yes", "1", "ON"])
async def test_nothing_is_changed_while_a_superuser_has_suspended_changes(join: Join, value: str) -> None:
    one = await join("one")
    fence = await one.lead()
    database = await one.connection.fetchval("SELECT quote_ident(current_database())")
    await one.connection.execute(f"ALTER DATABASE {database} SET pgrole.suspend = '{value}'")
    failure = await one.create(fence, "suspended_role")
    assert failure is not None
    assert failure.reason is Reason.SUSPENDED
    await one.connection.execute(f"ALTER DATABASE {database} SET pgrole.suspend = 'off'")
    assert await one.create(fence, "suspended_role") is None
    await one.connection.execute("DROP ROLE suspended_role")


async def test_a_database_owner_can_neither_suspend_nor_resume_changes(join: Join) -> None:
    one = await join("one")
    fence = await one.lead()
    admin = one.connection
    database = await admin.fetchval("SELECT quote_ident(current_database())")
    await admin.execute(f"CREATE ROLE suspending_owner; ALTER DATABASE {database} OWNER TO suspending_owner")
    try:
        await admin.execute("SET ROLE suspending_owner")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await admin.execute(f"ALTER DATABASE {database} SET pgrole.suspend = 'on'")
        await admin.execute("RESET ROLE")
        await admin.execute(f"ALTER DATABASE {database} SET pgrole.suspend = 'on'")
        await admin.execute("SET ROLE suspending_owner")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await admin.execute(f"ALTER DATABASE {database} RESET pgrole.suspend")
        await admin.execute("RESET ROLE")
        failure = await one.create(fence, "suspended_role")
        assert failure is not None
        assert failure.reason is Reason.SUSPENDED
    finally:
        await admin.execute(f"RESET ROLE; ALTER DATABASE {database} OWNER TO CURRENT_USER; DROP ROLE suspending_owner")
