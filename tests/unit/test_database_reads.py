"""postgres/privileges/database_session: what to read next, if events and searches both ask for something."""

from typing import Any, cast

from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, EventReader, PrivilegeRead, Scope

EVENT = PrivilegeRead(Scope.NAMED, names=frozenset({"orders"}))
SEARCH = PrivilegeRead(Scope.RECENT, xid=7, searches=True)


class Reader:
    def __init__(self) -> None:
        self.next = PrivilegeRead()

    async def read(self, *, gated: bool) -> PrivilegeRead:  # noqa: ARG002
        return self.next

    def forget(self) -> None:
        """Nothing is remembered."""


def begin() -> tuple[DatabaseSession, Reader, list[None]]:
    """Returns the session, its events, and a list that grows with each notice."""
    reader, notices = Reader(), list[None]()
    absent = cast("Any", None)
    session = DatabaseSession(
        "orders", "postgres", absent, absent, absent, None, 1, absent, lambda: notices.append(None)
    )
    session._reader = cast("EventReader", reader)
    return session, reader, notices


async def test_an_event_comes_before_a_search_which_follows() -> None:
    session, reader, notices = begin()
    reader.next = EVENT
    session.read_again(SEARCH)
    assert await session.next_read() == EVENT
    assert len(notices) == 2, "no one comes back for the search"
    reader.next = PrivilegeRead()
    assert await session.next_read() == SEARCH
    assert await session.next_read() == PrivilegeRead()


async def test_constant_events_do_not_put_off_a_search_for_ever() -> None:
    session, reader, notices = begin()
    reader.next = EVENT
    session.read_again(SEARCH)
    session.read_again(EVERYTHING)
    assert await session.next_read() == EVENT
    del notices[:]
    assert await session.next_read() == SEARCH | EVERYTHING
    assert notices, "no one comes back for the events"
    assert await session.next_read() == EVENT


async def test_what_is_read_again_is_read_although_there_are_no_events() -> None:
    session, _, _ = begin()
    session._reader = None
    session.read_again(EVERYTHING)
    assert await session.next_read() == EVERYTHING
    assert await session.next_read() == PrivilegeRead()


async def test_what_a_search_found_during_a_large_round_is_announced_again_after_it() -> None:
    """Small rounds take the notice, and read only events."""
    session, _, notices = begin()
    session.read_again(SEARCH)
    assert await session.read_events() == PrivilegeRead()
    del notices[:]
    session.read_again(PrivilegeRead())  # what the small rounds left
    assert notices, "no one comes back for the search"
    assert await session.next_read() == SEARCH
