"""Which databases of a server have a connection of their own, if not all can, and whose turn it is among the others."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

#: A database gives up its place only to one in which something changed this much later, in seconds.
QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """A database that is to be served. `placed`: it has a connection of its own. `changed_at`: when something last
    changed there, in seconds.

    `reachable`: if `placed`, no attempt to connect has failed since one succeeded; if not, the last attempt succeeded.
    A database that gave up its connection because no attempt succeeded counts as unreachable for a while.
    """

    name: str
    placed: bool
    reachable: bool
    changed_at: float


def choose_places(standings: Iterable[Standing], most: int, *, exchanging: bool) -> frozenset[str]:
    """Returns the databases that are to have a connection of their own, at most `most`.

    Those that have one keep it, while there is room. If `exchanging`, the one that has been quiet for longest gives it
    up to the one that changed last, or one that cannot be reached to one that can.
    """
    ranked = sorted(standings, key=_rank)
    chosen = [one for one in ranked if one.placed][:most]
    others = [one for one in ranked if not one.placed]
    free = most - len(chosen)
    if free > 0:
        chosen += others[:free]
    elif exchanging and chosen and others and outranks(others[0], chosen[-1]):
        chosen[-1] = others[0]
    return frozenset(one.name for one in chosen)


def _rank(one: Standing) -> tuple[bool, float, str]:
    return not one.reachable, -one.changed_at, one.name


def outranks(newer: Standing, older: Standing) -> bool:
    """Whether the one without a connection is to get that of the other."""
    return newer.reachable and (not older.reachable or newer.changed_at >= older.changed_at + QUIET_SECONDS)


class TurnKind(IntEnum):
    """Why a database has its turn. If two kinds could begin, the one that waited longer does."""

    ASKED = 0  # a declaration changed, or something is to be retried
    RETRY = 1  # the last turn failed
    ROUTINE = 2  # something may have changed there


@dataclass(frozen=True, slots=True)
class PolledDatabase:
    """A database without a connection of its own. Times are on one clock.

    `served_at`: when its last turn ended. `due`: when a routine turn may begin, or any, if the last turn `failed`.
    `asked_at`: when a turn may begin that a change asked for. `takes`: a turn and the pause after it, in seconds; 0.0
    if the last one failed.
    """

    name: str
    served_at: float = -math.inf
    due: float = -math.inf
    asked_at: float = math.inf
    failed: bool = False
    takes: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnPace:
    """When the next turn may begin: one that was asked for, one after a failure, or a routine one. `last`: the end of
    the last one by kind.
    """

    asked_from: float
    retries_from: float
    routine_from: float
    last: Mapping[TurnKind, float]


@dataclass(frozen=True, slots=True)
class DatabaseTurn:
    """`at`: when it may begin."""

    name: str
    kind: TurnKind
    at: float


def choose_turn(databases: Iterable[PolledDatabase], pace: TurnPace, now: float) -> DatabaseTurn | None:
    """Returns the next turn, which may be later than now; None: no database is to have one."""
    turns = [(_find_turn(one, pace), one.served_at) for one in _advance_first(databases)]
    ready = [
        (pace.last.get(turn.kind, -math.inf), turn.kind, served_at, turn.name, turn)
        for turn, served_at in turns
        if turn.at <= now
    ]
    if ready:
        return min(ready)[-1]
    return min((turn for turn, _ in turns), key=lambda turn: turn.at, default=None)


def _advance_first(databases: Iterable[PolledDatabase]) -> list[PolledDatabase]:
    """Returns them with an earlier `due` for the first, if many are due at about the same time, so that the last is not
    late.
    """
    some = sorted(databases, key=lambda one: (one.takes == 0.0, one.due))
    due, before = math.inf, 0.0
    for one in some:
        if one.takes > 0.0:
            due, before = min(due, one.due - before), before + one.takes
    return [replace(some[0], due=due), *some[1:]] if before > 0.0 else some


def _find_turn(one: PolledDatabase, pace: TurnPace) -> DatabaseTurn:
    if one.failed:
        return DatabaseTurn(one.name, TurnKind.RETRY, max(one.due, pace.retries_from))
    routine = max(one.due, pace.routine_from)
    asked = max(one.asked_at, pace.asked_from)
    if asked <= routine:
        return DatabaseTurn(one.name, TurnKind.ASKED, asked)
    return DatabaseTurn(one.name, TurnKind.ROUTINE, routine)
