"""Drifts of many kinds, spread over roles and fields so that none looks like a contest.

The controller deliberately slows down repairs of contested fields, which is not what is measured here.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping

import anyio

from pgrole_controller.core.contest import LIMIT, WINDOW

#: A different value for each field: attributes, and entries in each of the other three catalogs. `bypassrls` is
#: reserved for the restart.
DRIFTS: Mapping[str, str] = {
    "login": "ALTER ROLE {} NOLOGIN",
    "inherit": "ALTER ROLE {} NOINHERIT",
    "createdb": "ALTER ROLE {} CREATEDB",
    "createrole": "ALTER ROLE {} CREATEROLE",
    "replication": "ALTER ROLE {} REPLICATION",
    "connectionLimit": "ALTER ROLE {} CONNECTION LIMIT 99",
    "validUntil": "ALTER ROLE {} VALID UNTIL '2040-01-01 00:00:00+00'",
    "comment": "COMMENT ON ROLE {} IS 'changed by hand'",
    "memberOf": "GRANT pg_monitor TO {}",
    "parameters": "ALTER ROLE {} SET work_mem = '1MB'",
    "databaseParameters": "ALTER ROLE {} IN DATABASE postgres SET work_mem = '1MB'",
}

#: Seconds. Slightly longer than WINDOW, since a repair comes after its drift was drawn.
_WINDOW = WINDOW + 5.0
_TRIES = 1000


class Spread:
    """Draws drifts at random: each field of each role fewer than `LIMIT` times within `WINDOW`."""

    def __init__(self, name: Callable[[int], str], statements: Mapping[str, str]) -> None:
        """`name` maps a number to a role; `statements` are by field, with {} for the role."""
        self._name = name
        self._statements = statements
        self._drawn: dict[tuple[int, str], deque[float]] = {}

    async def draw(self, roles: int) -> tuple[str, str]:
        """Draws one of the first `roles` roles and a statement that changes it. Waits while none is available."""
        fields = list(self._statements)
        while True:
            for _ in range(_TRIES):
                number, field = random.randrange(roles), random.choice(fields)
                if self._take(number, field):
                    name = self._name(number)
                    return name, self._statements[field].format(name)
            await anyio.sleep(1)

    def _take(self, number: int, field: str) -> bool:
        now = anyio.current_time()
        drawn = self._drawn.setdefault((number, field), deque(maxlen=LIMIT - 1))
        if len(drawn) == drawn.maxlen and now - drawn[0] < _WINDOW:
            return False
        drawn.append(now)
        return True
