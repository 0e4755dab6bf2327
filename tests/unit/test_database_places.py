"""core/privileges/database_places: which databases keep a connection, and whose turn it is among the others."""

import math
from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.database_places import (
    QUIET_SECONDS,
    DatabaseTurn,
    PolledDatabase,
    Standing,
    TurnKind,
    TurnPace,
    choose_places,
    choose_turn,
)

AT_ONCE = TurnPace(-math.inf, -math.inf, -math.inf, {})


def placed(name: str, changed_at: float = 0.0, *, reachable: bool = True) -> Standing:
    return Standing(name, placed=True, reachable=reachable, changed_at=changed_at)


def polled(name: str, changed_at: float = 0.0, *, reachable: bool = True) -> Standing:
    return Standing(name, placed=False, reachable=reachable, changed_at=changed_at)


class TestPlaces:
    def test_all_have_one_if_there_are_enough(self) -> None:
        some = [polled("a", reachable=False), polled("b"), placed("c")]
        assert choose_places(some, 3, exchanging=True) == {"a", "b", "c"}

    def test_free_ones_go_to_those_that_changed_last_and_can_be_reached(self) -> None:
        some = [polled("a", 1.0), polled("b", 9.0, reachable=False), polled("c", 2.0), polled("d", 1.0)]
        assert choose_places(some, 1, exchanging=False) == {"c"}
        assert choose_places(some, 2, exchanging=False) == {"a", "c"}
        assert choose_places(some, 4, exchanging=False) == {"a", "b", "c", "d"}

    def test_one_that_changed_later_gets_the_place_of_the_one_that_has_been_quiet_for_longest(self) -> None:
        some = [placed("a", 50.0), placed("b", 0.0), polled("c", QUIET_SECONDS), polled("d", QUIET_SECONDS + 1.0)]
        assert choose_places(some, 2, exchanging=True) == {"a", "d"}

    @pytest.mark.parametrize(
        "newer",
        [
            polled("b", QUIET_SECONDS - 0.1),
            polled("b", 0.0),
            polled("b", 1000.0, reachable=False),
        ],
        ids=["a little later", "as late", "unreachable"],
    )
    def test_who_has_one_keeps_it_otherwise(self, newer: Standing) -> None:
        assert choose_places([placed("a", 0.0), newer], 1, exchanging=True) == {"a"}

    def test_there_is_no_exchange_before_its_time(self) -> None:
        assert choose_places([placed("a", 0.0), polled("b", 1000.0)], 1, exchanging=False) == {"a"}

    def test_one_that_cannot_be_reached_gives_way_to_one_that_can(self) -> None:
        some = [placed("a", 1000.0, reachable=False), placed("b", 0.0), polled("c", 0.0)]
        assert choose_places(some, 2, exchanging=True) == {"b", "c"}

    def test_of_too_many_those_that_changed_last_keep_theirs(self) -> None:
        some = [placed("a", 1.0), placed("b", 2.0), placed("c", 2.0), polled("d", 2.5)]
        assert choose_places(some, 2, exchanging=False) == {"b", "c"}
        assert choose_places(some, 0, exchanging=True) == frozenset()


class TestTurns:
    def test_the_one_that_waits_longest_is_next(self) -> None:
        some = [PolledDatabase("a", served_at=3.0), PolledDatabase("b", served_at=2.0), PolledDatabase("c")]
        assert choose_turn(some, AT_ONCE, 4.0) == DatabaseTurn("c", TurnKind.ROUTINE, -math.inf)
        assert choose_turn(some[:2], AT_ONCE, 4.0) == DatabaseTurn("b", TurnKind.ROUTINE, -math.inf)
        assert choose_turn([], AT_ONCE, 4.0) is None

    def test_one_that_is_asked_for_is_served_before_others_and_does_not_wait_for_their_pause(self) -> None:
        pace = TurnPace(asked_from=5.0, retries_from=9.0, routine_from=9.0, last={TurnKind.ROUTINE: 4.0})
        some = [PolledDatabase("a", served_at=1.0), PolledDatabase("b", served_at=4.0, asked_at=2.0)]
        assert choose_turn(some, pace, 4.5) == DatabaseTurn("b", TurnKind.ASKED, 5.0)
        assert choose_turn(some, pace, 20.0) == DatabaseTurn("b", TurnKind.ASKED, 5.0)

    def test_what_is_asked_for_again_and_again_leaves_turns_to_others(self) -> None:
        pace = TurnPace(
            asked_from=5.0, retries_from=9.0, routine_from=9.0, last={TurnKind.ROUTINE: 4.0, TurnKind.ASKED: 8.0}
        )
        some = [PolledDatabase("a", served_at=1.0), PolledDatabase("b", served_at=8.0, asked_at=0.0)]
        assert choose_turn(some, pace, 8.5) == DatabaseTurn("b", TurnKind.ASKED, 5.0)
        assert choose_turn(some, pace, 9.0) == DatabaseTurn("a", TurnKind.ROUTINE, 9.0)

    def test_failures_take_no_turn_from_those_that_succeed(self) -> None:
        last = {TurnKind.ROUTINE: 4.0, TurnKind.RETRY: 6.0}
        some = [PolledDatabase(f"x{number}", failed=True) for number in range(20)]
        some += [PolledDatabase("a", served_at=4.0), PolledDatabase("b", served_at=2.0)]
        pace = replace(AT_ONCE, last=last)
        assert choose_turn(some, pace, 7.0) == DatabaseTurn("b", TurnKind.ROUTINE, -math.inf)

    def test_one_that_failed_waits_whatever_is_asked_for(self) -> None:
        some = [PolledDatabase("a", served_at=1.0, due=30.0, asked_at=-math.inf, failed=True)]
        assert choose_turn(some, AT_ONCE, 10.0) == DatabaseTurn("a", TurnKind.RETRY, 30.0)

    def test_a_retry_does_not_wait_for_the_pause_of_routine_turns(self) -> None:
        pace = TurnPace(asked_from=5.0, retries_from=6.0, routine_from=3600.0, last={})
        some = [PolledDatabase("a", served_at=1.0), PolledDatabase("b", served_at=4.0, due=7.0, failed=True)]
        assert choose_turn(some, pace, 5.0) == DatabaseTurn("b", TurnKind.RETRY, 7.0)
        assert choose_turn(some[:1], pace, 5.0) == DatabaseTurn("a", TurnKind.ROUTINE, 3600.0)

    def test_of_many_that_are_due_at_once_the_first_begins_so_that_the_last_is_not_late(self) -> None:
        some = [PolledDatabase(name, served_at=at, due=100.0 + at, takes=4.0) for at, name in enumerate("abcd")]
        assert choose_turn(some, AT_ONCE, 0.0) == DatabaseTurn("a", TurnKind.ROUTINE, 91.0)
        assert choose_turn(some[:1], AT_ONCE, 0.0) == DatabaseTurn("a", TurnKind.ROUTINE, 100.0)
        failing = [replace(one, takes=0.0, failed=True) if one.name in "ac" else one for one in some]
        assert choose_turn(failing, AT_ONCE, 0.0) == DatabaseTurn("b", TurnKind.ROUTINE, 99.0)

    def test_what_is_not_due_is_served_when_it_is_asked_for(self) -> None:
        some = [PolledDatabase("a", served_at=1.0, due=3600.0), PolledDatabase("b", 1.0, due=3600.0, asked_at=7.0)]
        assert choose_turn(some, AT_ONCE, 5.0) == DatabaseTurn("b", TurnKind.ASKED, 7.0)
        assert choose_turn(some[:1], AT_ONCE, 5.0) == DatabaseTurn("a", TurnKind.ROUTINE, 3600.0)
