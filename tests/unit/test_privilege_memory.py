"""What the worker of one database remembers: new objects, contests, and when further reads are due."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from pgrole_controller.controller.privileges import privilege_memory
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.controller.privileges.privilege_screening import find_new_objects
from pgrole_controller.controller.privileges.role_memory import AppliedState, NewObjects, RoleMemory
from pgrole_controller.controller.privileges.small_rounds import Notice
from pgrole_controller.core.contest import FIRST_DELAY, LIMIT, WINDOW, Moment
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObservedAcl
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.drift_history import RecordedDrift
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from tests.unit.test_acl_decision import STRANGER, grantee, make

DEADLINE = 30.0
NOTHING = frozenset[ObjectId]()
OLD, NEW, FAILING = make("old", oid=1), make("new", oid=2), make("failing", oid=3)
READER = grantee()
OTHER = replace(READER, key=Key("shop", "other"), uid="uid-2")
LAST = replace(READER, key=Key("shop", "last"), uid="uid-3")


def only(one: DatabaseObject) -> frozenset[ObjectId]:
    return frozenset({one.id})


def observe(*objects: DatabaseObject, complete: bool = True) -> ObservedDatabase:
    acls = [ObservedAcl(one, ()) for one in objects]
    return ObservedDatabase(DatabaseFacts("orders", 180_000), acls, complete=complete)


def read(memory: PrivilegeMemory, *objects: DatabaseObject) -> NewObjects:
    return memory.note_objects(observe(*objects), complete=True)


def read_more(memory: PrivilegeMemory, *objects: DatabaseObject) -> NewObjects:
    """A partial read, or a complete one for some of the roles."""
    return memory.note_objects(observe(*objects, complete=False), complete=False)


def settle(
    memory: PrivilegeMemory,
    unfinished: Mapping[Key, frozenset[ObjectId] | None],
    read: frozenset[ObjectId] | None = None,
    *,
    everyone: bool = True,
) -> None:
    number = read_more(memory).read
    for key, objects in unfinished.items():
        memory.note_granted(key, read, objects, Moment(0.0, datetime.now(UTC)), number)
    if everyone:
        memory.end_round(read)


def remember(memory: PrivilegeMemory, *, suspended: bool = False) -> RoleMemory:
    """Publishes both roles, the first perhaps suspended, and returns the first one's memory."""
    memory.keep_only([replace(READER, suspended=suspended), OTHER])
    return memory.role(READER, "orders")


def begin() -> tuple[PrivilegeMemory, RoleMemory]:
    """Returns the memory after the first complete read of the database and both roles."""
    memory = PrivilegeMemory()
    role = remember(memory)
    memory.role(OTHER, "orders")
    objects = read(memory, OLD)
    assert not objects.is_known
    for one in (READER, OTHER):
        memory.begin_noting(one.key, NOTHING, objects.read)
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    return memory, role


def test_what_is_noted_during_a_complete_read_is_newer() -> None:
    memory, role = begin()
    renamed = replace(OLD, name="renamed")
    memory.begin_reading()
    assert role.select_new(read_more(memory, renamed, NEW)) == only(OLD) | only(NEW)
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    assert role.select_new(read(memory, OLD)) == NOTHING
    memory.end_reading()
    assert role.select_new(read_more(memory, renamed, NEW)) == NOTHING
    assert role.select_new(read(memory, OLD)) == only(OLD)


def test_a_role_misses_new_objects_of_rounds_in_which_it_took_no_part() -> None:
    memory, role = begin()
    read(memory, OLD, NEW)
    assert memory.select_new(only(NEW) | only(OLD)) == only(NEW)
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    assert role.select_new(read_more(memory)) == NOTHING
    memory.add_missed([READER.key], only(NEW) | only(FAILING))
    assert role.select_new(read_more(memory)) == only(NEW), "an object that no one read since is gone"


def test_a_new_object_stays_new_to_the_role_whose_grant_failed() -> None:
    memory, role = begin()
    other = memory.role(OTHER, "orders")
    assert role.select_new(read(memory, OLD, FAILING)) == only(FAILING)
    settle(memory, {READER.key: only(FAILING), OTHER.key: NOTHING})
    objects = read_more(memory)
    assert role.select_new(objects) == only(FAILING)
    assert other.select_new(objects) == NOTHING
    settle(memory, {READER.key: NOTHING}, only(OLD))
    assert role.select_new(read_more(memory)) == only(FAILING), "a round without the object says nothing about it"
    settle(memory, {READER.key: NOTHING}, only(FAILING), everyone=False)
    assert role.select_new(read_more(memory)) == NOTHING


@pytest.mark.parametrize("complete", [True, False])
def test_a_new_object_stays_new_to_the_role_about_which_nothing_could_be_decided(*, complete: bool) -> None:
    memory, role = begin()
    objects = read(memory, OLD, NEW) if complete else read_more(memory, OLD, NEW)
    settle(memory, {READER.key: None, OTHER.key: NOTHING}, None if complete else only(OLD) | only(NEW))
    assert role.select_new(objects) == only(NEW)
    assert role.select_new(read_more(memory)) == only(NEW)


def test_a_failed_repair_makes_no_object_new() -> None:
    memory, role = begin()
    read(memory, OLD, NEW)
    settle(memory, {READER.key: only(OLD), OTHER.key: NOTHING})
    assert role.select_new(read_more(memory)) == NOTHING


def test_no_object_stays_new_to_a_role_that_needed_no_decision() -> None:
    memory, role = begin()
    read_more(memory, NEW)
    settle(memory, {OTHER.key: NOTHING}, only(NEW))
    assert role.select_new(read_more(memory)) == NOTHING


def test_objects_stay_new_to_a_role_until_a_round_considers_it() -> None:
    memory, role = begin()
    other = memory.role(OTHER, "orders")
    read(memory, OLD, NEW)
    settle(memory, {OTHER.key: NOTHING}, everyone=False)
    objects = read_more(memory)
    assert role.select_new(objects) == only(NEW)
    assert other.select_new(objects) == NOTHING


def test_objects_that_were_found_when_a_role_was_declared_are_not_new_to_it() -> None:
    """No earlier role reaches them, so that a complete read for the declared one is the first that finds them."""
    memory, role = begin()
    last = memory.role(LAST, "orders")
    objects = read_more(memory, OLD, NEW)
    assert last.select_new(objects) is None
    memory.begin_noting(LAST.key, NOTHING, objects.read)
    settle(memory, {LAST.key: NOTHING}, everyone=False)
    objects = read_more(memory, FAILING)
    assert last.select_new(objects) == only(FAILING)
    assert role.select_new(objects) == only(NEW) | only(FAILING)


def test_objects_that_only_the_read_back_of_one_role_finds_stay_new_to_others() -> None:
    memory, role = begin()
    decided = read(memory, OLD).read
    number = read_more(memory, OLD, NEW).read
    now = Moment(0.0, datetime.now(UTC))
    memory.note_granted(READER.key, None, NOTHING, now, decided)
    memory.note_granted(OTHER.key, None, NOTHING, now, number)
    memory.end_round(None)
    assert role.select_new(read_more(memory)) == only(NEW)


def test_objects_stay_new_to_roles_for_which_only_others_were_read() -> None:
    memory, role = begin()
    read(memory, OLD, NEW)  # for the other role; the event about the new object is still to come
    settle(memory, {READER.key: NOTHING}, only(OLD))
    assert role.select_new(read_more(memory)) == only(NEW)
    settle(memory, {READER.key: NOTHING}, only(NEW))
    assert role.select_new(read_more(memory)) == NOTHING


def test_objects_that_appear_while_a_role_is_suspended_stay_new_to_it() -> None:
    memory, role = begin()
    remember(memory, suspended=True)
    read(memory, OLD, NEW)
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    read(memory, OLD, NEW, FAILING)
    settle(memory, {OTHER.key: NOTHING})
    read(memory, OLD, NEW)
    remember(memory)
    assert role.select_new(read_more(memory)) == only(NEW)
    settle(memory, {READER.key: NOTHING})
    assert role.select_new(read_more(memory)) == NOTHING


def test_new_objects_are_unknown_until_a_complete_read_while_the_role_is_active() -> None:
    memory = PrivilegeMemory()
    role = remember(memory, suspended=True)
    assert role.select_new(read(memory, OLD)) is None
    memory.begin_noting(READER.key, NOTHING, 1)
    settle(memory, {READER.key: NOTHING})
    objects = read(memory, OLD)
    assert role.select_new(objects) is None
    remember(memory)
    memory.begin_noting(READER.key, only(OLD), objects.read)
    assert role.select_new(read(memory, OLD)) == only(OLD)


def test_an_object_with_another_owner_or_name_is_new() -> None:
    memory, role = begin()
    assert role.select_new(read(memory, make("old", oid=1, owner=STRANGER))) == only(OLD)
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    assert role.select_new(read(memory, make("renamed", oid=1, owner=STRANGER))) == only(OLD)


@pytest.mark.parametrize("other", [replace(OLD, elevated=True), replace(OLD, extension=True)])
def test_an_object_that_policy_may_have_denied_or_no_pattern_matched_is_new(other: DatabaseObject) -> None:
    memory, role = begin()
    for one in (other, OLD):
        assert role.select_new(read(memory, one)) == only(OLD)
        settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
        assert role.select_new(read(memory, one)) == NOTHING


def test_a_role_is_contested_only_while_its_repairs_are_held_back() -> None:
    memory, role = begin()
    now = Moment(100.0, datetime(2026, 1, 1, tzinfo=UTC))
    for _ in range(LIMIT):
        role.note_repair(now, ["alice"])
        role.hold(now, (), complete=False)
    assert READER.key not in memory.contested()
    assert role.hold(now, ("alice",), complete=False) == {"alice"}
    assert memory.contested() == {READER.key}


def test_any_changed_spec_ends_a_contest() -> None:
    memory, role = begin()
    now = Moment(100.0, datetime(2026, 1, 1, tzinfo=UTC))
    for changed in (replace(READER, generation=2), replace(READER, generation=2, oid=99)):
        for _ in range(LIMIT):
            role.note_repair(now, ["alice"])
        assert role.hold(now, ("alice",), complete=False) == {"alice"}
        assert memory.role(changed, "orders") is role
        assert READER.key not in memory.contested()
        assert memory.role(changed, "orders").contests == {}


async def test_a_notice_outlasts_the_end_of_what_small_rounds_ran_beside() -> None:
    """A drift that was noticed at that moment waited for the whole next read."""
    notice = Notice()
    notice.give()
    notice.wake()
    with anyio.fail_after(DEADLINE):
        await notice.wait()
    assert notice.take() < math.inf


def test_contests_can_be_looked_at_while_a_thread_decides_about_the_role() -> None:
    now = Moment(100.0, datetime.now(UTC))
    role = RoleMemory("uid")
    for _ in range(LIMIT):
        role.note_repair(now, ["owner", "other"])
    role.hold(now, ["owner", "other"], complete=True)
    checks = role.next_checks
    due = [next(checks)]
    role.hold(now.after(WINDOW), (), complete=True)
    assert [*due, *checks] == [now.seconds + FIRST_DELAY] * 2
    assert not role.contests


def test_a_complete_read_is_due_once_many_objects_were_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privilege_memory, "MOST_NOTED", 1)
    memory, _ = begin()
    full = []
    for observed in (observe(NEW, complete=False), observe(FAILING, complete=False), observe(OLD, NEW)):
        memory.note_objects(observed, complete=observed.complete)
        full.append(memory.is_full)
    assert full == [False, True, False]


def test_the_next_worker_knows_what_the_former_one_applied_until_it_ended_in_the_same_database() -> None:
    memory, applied, other = PrivilegeMemory().of_database(16_384), AppliedState("a"), replace(OTHER, oid=20_001)
    memory.applied[READER.oid] = applied
    following = memory.of_next_worker()
    memory.keep_only([READER, other])
    memory.applied[other.oid] = applied
    assert following.of_database(16_384).applied == {READER.oid: applied, other.oid: applied}
    memory.keep_only([other])
    assert following.of_database(16_384).applied == {other.oid: applied}
    assert following.of_database(16_385).applied == {}


def test_the_next_worker_has_the_drifts_that_the_former_one_did_not_record() -> None:
    memory = PrivilegeMemory().of_database(16_384)
    memory.drifts.note_waiting([RecordedDrift("reader", ("privileges",), True, "orders")], 10.0)
    following = memory.of_next_worker()
    memory.drifts.note_waiting([RecordedDrift("writer", ("privileges",), True, "orders")])
    assert [one.role for one in following.drifts.waiting] == ["reader", "writer"]
    assert following.drifts.record_at == 10.0


def test_the_next_worker_knows_which_objects_are_new_where_the_database_stores_nothing() -> None:
    memory, _ = begin()
    asked = READER, "orders"
    following = memory.of_next_worker()
    assert following.role(*asked).select_new(read(following, NEW)) is None, "the database tells"
    memory.applied[READER.oid] = AppliedState("a")
    memory.add_missed([READER.key], only(OLD))
    assert memory.role(*asked).select_new(read(memory, OLD, FAILING)) == only(OLD) | only(FAILING)
    following = memory.of_next_worker()
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING})
    read(memory, OLD, FAILING, NEW)
    role = following.role(*asked)
    assert role.select_new(read(following, OLD, FAILING, NEW)) == only(OLD) | only(FAILING) | only(NEW)
    assert following.is_applied(READER, "orders")
    other = following.role(replace(READER, uid="uid-4"), "orders")
    assert other.select_new(read(following, OLD)) is None


async def test_where_neither_process_nor_database_tells_its_age_an_object_counts_as_new() -> None:
    one = PrivilegeProgress(READER, RoleMemory(READER.uid))
    one.decision = PrivilegeDecision(extended=(PrivilegeDifference("SELECT", NEW, held=False),))
    unstored = cast("DatabaseSession", SimpleNamespace(stores=False))
    assert await find_new_objects([one], observe(NEW), unstored) == {READER.key: only(NEW)}


def test_what_was_renamed_is_known_as_it_was_until_every_role_is_served() -> None:
    memory, role = begin()
    other = memory.role(OTHER, "orders")
    renamed = replace(OLD, name="renamed", owner=STRANGER)
    objects = read_more(memory, renamed)
    before = {OLD.id: replace(OLD, owner_name=renamed.owner_name)}
    assert role.select_before(objects) == other.select_before(objects) == before
    role.note_left_over({FAILING.id: FAILING}, None)
    role.note_left_over(before, only(OLD))
    settle(memory, {READER.key: only(OLD), OTHER.key: NOTHING}, only(OLD))
    objects = read_more(memory, renamed)
    assert role.select_before(objects) == {**before, FAILING.id: FAILING}
    assert other.select_before(objects) == {}
    role.note_revoked(only(OLD), objects.read)
    assert role.select_before(objects) == {FAILING.id: FAILING}
    role.note_left_over({}, None)
    assert role.select_before(objects) == {}


def test_what_a_role_holds_on_a_renamed_object_after_the_revoke_was_granted_by_others() -> None:
    memory, role = begin()
    renamed = replace(OLD, name="renamed")
    objects = read_more(memory, renamed)
    role.note_left_over(role.select_before(objects), only(OLD))
    role.note_revoked(only(OLD), objects.read)
    assert role.select_before(read_more(memory, renamed)) == {}
    settle(memory, {READER.key: NOTHING, OTHER.key: NOTHING}, only(OLD))
    assert role.select_before(read_more(memory, OLD)) == {OLD.id: renamed}


def test_of_an_object_that_was_renamed_twice_it_is_not_known_how_it_was() -> None:
    memory, role = begin()
    read_more(memory, replace(OLD, name="renamed"))
    assert role.select_before(read_more(memory, replace(OLD, name="again"))) == {}


@pytest.mark.parametrize("values", [{"left_off": only(OLD)}, {"failure": Transient(Reason.DATABASE_ERROR, "x")}])
def test_what_a_role_may_have_lacked_before_a_rename_is_not_known(values: Mapping[str, object]) -> None:
    memory, role = begin()
    for name, value in values.items():
        setattr(role, name, value)
    assert role.select_before(read_more(memory, replace(OLD, name="renamed"))) == {}


def test_the_next_worker_knows_what_was_renamed_where_nothing_is_stored() -> None:
    memory, _ = begin()
    memory.applied[READER.oid] = AppliedState("x")
    following = memory.of_next_worker()
    role = remember(following)
    assert role.select_before(read(following, replace(OLD, name="renamed"))) == {OLD.id: OLD}
