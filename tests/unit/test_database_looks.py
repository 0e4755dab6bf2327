"""postgres/privileges/database_session: what to read next, if events and searches both ask for something."""

from typing import Any, cast

from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, EventReader, Look, Scope

EVENT = Look(Scope.NAMED, names=frozenset({"orders"}))
SEARCH = Look(Scope.RECENT, xid=7, searches=True)


class Reader:
    def __init__(self) -> None:
        self.next = Look()

    async def read(self, *, gated: bool) -> Look:  # noqa: ARG002
        return self.next


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
    session.look_again(SEARCH)
    assert await session.look() == EVENT
    assert len(notices) == 2, "no one comes back for the search"
    reader.next = Look()
    assert await session.look() == SEARCH
    assert await session.look() == Look()


async def test_constant_events_do_not_put_off_a_search_for_ever() -> None:
    session, reader, notices = begin()
    reader.next = EVENT
    session.look_again(SEARCH)
    session.look_again(EVERYTHING)
    assert await session.look() == EVENT
    del notices[:]
    assert await session.look() == SEARCH | EVERYTHING
    assert notices, "no one comes back for the events"
    assert await session.look() == EVENT


async def test_what_is_read_again_is_read_although_there_are_no_events() -> None:
    session, _, _ = begin()
    session._reader = None
    session.look_again(EVERYTHING)
    assert await session.look() == EVERYTHING
    assert await session.look() == Look()


async def test_what_a_search_found_during_a_large_round_is_announced_again_after_it() -> None:
    """Small rounds take the notice, and read only events."""
    session, _, notices = begin()
    session.look_again(SEARCH)
    assert await session.look_at_events() == Look()
    del notices[:]
    session.look_again(Look())  # what the small rounds left
    assert notices, "no one comes back for the search"
    assert await session.look() == SEARCH
