"""controller/orphans: claims of deleted objects are released in chunks. A chunk that fails delays no other, and chunks
alternate with reconciles.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.orphans import CHUNK, FIRST_SECONDS, POSTPONED_SECONDS, Orphans, OrphanTimer
from pgrole_controller.controller.session_keeper import SessionKeeper, SessionState
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.claim_store import CLAIMS_PAGE, HeldClaim, HeldClaims
from pgrole_controller.postgres.session import Session
from tests.timelapse import in_timelapse

FAILURE = Transient(Reason.DATABASE_ERROR, "no")


def claims(count: int) -> list[HeldClaim]:
    return [HeldClaim(Key("shop", f"o{number}"), f"r{number}", f"u{number}") for number in range(count)]


def release(orphans: Orphans, poisoned: set[str]) -> list[set[str]]:
    """Returns the released chunks in order; a chunk with a poisoned claim fails as a whole."""
    released = []
    while not orphans.done:
        chunk = orphans.take(lambda _key, _uid: True)
        names = {name for name, _ in chunk}
        assert 0 < len(names) <= CHUNK
        failed = bool(names & poisoned)
        orphans.end(chunk, FAILURE if failed else None)
        if not failed:
            released.append(names)
    return released


@in_timelapse
async def test_thousands_of_claims_are_released_in_chunks() -> None:
    orphans = Orphans()
    orphans.load(claims(10_000))
    released = release(orphans, set())
    assert [len(names) for names in released] == [CHUNK] * (10_000 // CHUNK)


@given(count=st.integers(1, 1_200), poisoned=st.sets(st.integers(0, 1_199), max_size=4))
def test_all_claims_are_released_except_those_that_fail_alone(count: int, poisoned: set[int]) -> None:
    orphans = Orphans()
    orphans.load(claims(count))
    bad = {f"r{number}" for number in poisoned}
    released = [name for names in release(orphans, bad) for name in names]
    assert sorted(released) == sorted({f"r{number}" for number in range(count)} - bad)


def test_the_claim_of_a_recreated_object_is_not_released() -> None:
    orphans = Orphans()
    orphans.load(claims(CHUNK + 1))
    orphans.end(orphans.take(lambda _key, _uid: True), None)
    assert orphans.take(lambda _key, _uid: False) == ()
    assert orphans.done


def test_the_release_is_not_done_before_the_claims_are_read() -> None:
    orphans = Orphans()
    assert not orphans.done
    orphans.load([])
    assert orphans.done


RESYNC_SECONDS = 3600.0


class OrphanSession:
    """Holds claims. A chunk takes `seconds`; with `locked`, only a chunk with such a claim does, and it fails."""

    def __init__(self, count: int) -> None:
        self.held = claims(count)
        self.reads: list[float] = []
        self.chunks: list[float] = []
        self.failures: list[float] = []
        self.seconds, self.locked, self.enforcing, self.page = 0.0, set[str](), False, CLAIMS_PAGE

    async def read_claims(self, after: str) -> HeldClaims:
        self.reads.append(anyio.current_time())
        page = sorted((one for one in self.held if one.role_name > after), key=attrgetter("role_name"))[: self.page]
        return HeldClaims(page, page[-1].role_name if len(page) == self.page else None)

    async def apply_plans(self, plans: Sequence[Plan]) -> list[PgRoleError | None]:
        (plan,) = plans
        self.chunks.append(anyio.current_time())
        assert 0 < len(plan.releases) <= CHUNK
        fails = bool(self.locked & {name for name, _ in plan.releases})
        if fails or not self.locked:
            await anyio.sleep(self.seconds)
        if fails:
            self.failures.append(anyio.current_time())
            return [FAILURE]
        self.held = [one for one in self.held if one[1:] not in plan.releases]
        return [None]


class OrphanWorld:
    def __init__(self, count: int = 1) -> None:
        self.session, self.connection, self.released = OrphanSession(count), anyio.Lock(), list[str]()
        server = SimpleNamespace(name="main", resync_seconds=RESYNC_SECONDS)
        self.keeper = SimpleNamespace(state=SessionState.ACTIVE, server=server)
        self.servers: dict[Key, str] = {}
        self.uids: dict[Key, str] = {}
        self.unknown: set[str] = set()
        objects = SimpleNamespace(covers=lambda _: True, server_name=self.servers.get, uid=self.uids.get)
        self.timer = OrphanTimer(
            cast("Session", self.session),
            self.connection,
            cast("SessionKeeper", self.keeper),
            cast("Objects", objects),
            self.released.append,
            lambda: self.unknown,
        )

    async def run(self, seconds: float, then: Callable[[], None] = lambda: None, more: float = 0.0) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.timer.run)
            await anyio.sleep(seconds)
            then()
            await anyio.sleep(more)
            tasks.cancel_scope.cancel()


@in_timelapse
async def test_orphans_are_released_soon_after_a_session_begins_and_once_per_period() -> None:
    world = OrphanWorld(3)
    world.servers[Key("shop", "o1")] = "main"
    world.servers[Key("shop", "o2")] = "another"
    began = anyio.current_time()
    await world.run(RESYNC_SECONDS + 10.0)
    assert world.released == ["r0", "r2"]
    assert [at - began for at in world.session.reads] == pytest.approx([FIRST_SECONDS, FIRST_SECONDS + RESYNC_SECONDS])


@in_timelapse
async def test_claims_made_through_another_pgserver_wait_until_it_has_a_session_or_is_deleted() -> None:
    world = OrphanWorld(3)
    for number, uid in enumerate(("u0", "recreated", "u2")):
        key = Key("shop", f"o{number}")
        world.servers[key], world.uids[key] = "another" if number < 2 else "third", uid
    world.unknown = {"another"}
    await world.run(RESYNC_SECONDS - 10.0)
    assert world.released == ["r1", "r2"]
    await world.run(RESYNC_SECONDS, lambda: world.unknown.clear(), RESYNC_SECONDS)
    assert world.released == ["r1", "r2", "r0"]


@in_timelapse
async def test_claims_are_read_in_pages_and_each_once_in_a_period() -> None:
    world = OrphanWorld(10)
    world.session.page = 3
    for number in range(9):
        world.servers[Key("shop", f"o{number}")] = "main"
    await world.run(10.0)
    assert world.released == ["r9"]
    assert len(world.session.reads) == 4


@in_timelapse
async def test_reconciles_get_the_connection_between_two_chunks() -> None:
    world = OrphanWorld(3 * CHUNK)
    world.session.seconds = 1.0
    batches: list[float] = []

    async def reconcile() -> None:
        while True:
            async with world.connection:
                batches.append(anyio.current_time())
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reconcile)
        await world.run(10.0)
        tasks.cancel_scope.cancel()
    first, second, third = world.session.chunks
    assert not world.session.held
    for begins, following in ((first, second), (second, third)):
        assert any(begins + 1.0 <= at < following for at in batches)
        assert not any(begins < at < begins + 1.0 for at in batches)


@in_timelapse
async def test_chunks_that_wait_for_a_lock_use_a_small_share_of_the_time() -> None:
    world = OrphanWorld(CHUNK)
    world.session.locked, world.session.seconds = {"r0"}, 5.0
    await world.run(1000.0)
    assert len(world.session.failures) > 5
    for failed in world.session.failures:
        assert not any(failed < at < failed + 100.0 for at in world.session.chunks)
    assert len(world.released) > CHUNK / 2  # in smaller chunks, without the one that fails


@pytest.mark.parametrize("cause", ["suspended", "enforcing"])
@in_timelapse
async def test_nothing_is_released_while_changes_are_suspended_or_kubernetes_is_unreachable(cause: str) -> None:
    world = OrphanWorld()
    if cause == "suspended":
        world.keeper.state = SessionState.SUSPENDED
    else:
        world.session.enforcing = True

    def over() -> None:
        assert not world.session.reads
        world.keeper.state, world.session.enforcing = SessionState.ACTIVE, False

    await world.run(100.0, over, POSTPONED_SECONDS)
    assert world.released == ["r0"]


@in_timelapse
async def test_claims_are_read_again_when_kubernetes_is_reachable_again() -> None:
    world = OrphanWorld()
    await world.run(100.0, world.timer.restart, 1.0)
    assert len(world.session.reads) == 2
