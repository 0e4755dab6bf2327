"""controller/privileges/read_pace: what others cause takes a tenth of the time at most."""

import math
from dataclasses import replace

import pytest

from pgrole_controller.controller.privileges.read_pace import CompleteReads, DatabaseChecks, FurtherReads
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, PrivilegeRead, Scope

#: After an event that asks for everything, and after another one.
FAR = PrivilegeRead(Scope.FULL, xid=7, defaults=True)
NAMED = PrivilegeRead(Scope.NAMED, names=frozenset({"orders"}), xid=8)
ONE, OTHER = Key("shop", "app"), Key("shop", "other")


def read(
    reads: CompleteReads, to_read: PrivilegeRead, began: float, took: float, *, forced: bool = False
) -> PrivilegeRead:
    found = reads.moderate(to_read, began, forced=forced)
    reads.note(began, began + took)
    return found


def test_after_a_complete_read_that_an_event_caused_only_what_is_recent_is_read_at_once() -> None:
    reads = CompleteReads()
    assert read(reads, FAR, 100.0, 0.5) == FAR
    assert reads.due_at == math.inf
    assert read(reads, FAR, 101.0, 0.1) == replace(FAR, scope=Scope.RECENT)
    assert reads.due_at == 105.0
    assert read(reads, NAMED, 102.0, 0.1) == NAMED
    found = read(reads, NAMED, 105.0, 0.5)
    assert (found.scope, found.names, found.defaults) == (Scope.FULL, NAMED.names, True)
    assert reads.due_at == math.inf
    assert read(reads, FAR, 106.0, 0.1).scope is Scope.RECENT
    assert reads.due_at == 110.0


def test_the_pause_is_bounded_and_what_no_event_asked_for_begins_none() -> None:
    reads = CompleteReads()
    assert read(reads, EVERYTHING | FAR, 100.0, 60.0, forced=True).scope is Scope.FULL
    assert read(reads, FAR, 160.0, 60.0) == FAR
    assert read(reads, FAR, 229.9, 0.1).scope is Scope.RECENT
    assert read(reads, PrivilegeRead(), 230.0, 0.1).scope is Scope.FULL


def test_a_forced_read_includes_what_was_put_off_and_a_fingerprint_is_never_put_off() -> None:
    reads = CompleteReads()
    read(reads, FAR, 100.0, 1.0)
    assert read(reads, EVERYTHING, 101.5, 0.1) == EVERYTHING
    assert read(reads, FAR, 102.0, 0.1).scope is Scope.RECENT
    assert read(reads, EVERYTHING, 102.1, 0.1, forced=True) == EVERYTHING | FAR
    assert reads.due_at == math.inf


def test_further_reads_use_a_tenth_of_the_time_and_waiting_roles_are_due_after_the_pause() -> None:
    reads = FurtherReads()
    both = frozenset({ONE, OTHER})
    assert reads.admit(both, 100.0) == both
    reads.note(100.0, 100.5)
    assert reads.next == math.inf
    assert reads.admit(both, 104.9) == frozenset()
    assert reads.next == 105.0
    assert reads.due(104.9) == frozenset()
    assert reads.due(105.0) == both
    reads.begin(frozenset({ONE}))
    assert reads.due(105.0) == {OTHER}
    reads.note(105.0, 1105.0)
    assert reads.due(1115.0) == {OTHER}


def test_checks_of_the_database_use_a_tenth_of_the_time_and_a_request_waits_for_the_next() -> None:
    checks = DatabaseChecks()
    assert (checks.take(100.0), checks.due_at) == (False, math.inf)
    checks.request()
    assert checks.take(100.0)
    checks.note(100.0, 100.1)
    checks.request()
    assert not checks.take(100.9)
    checks.note(100.9, 100.95)
    assert checks.due_at == pytest.approx(101.0)
    assert checks.take(101.0)
    assert (checks.take(101.0), checks.due_at) == (False, math.inf)


def test_what_a_role_waits_for_is_looked_for_after_the_pause() -> None:
    reads = FurtherReads()
    reads.note(100.0, 100.5)
    reads.put_off(frozenset({ONE}))
    assert reads.due(104.9) == frozenset()
    assert reads.due(105.0) == {ONE}
