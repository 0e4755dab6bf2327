"""Prunes history and events in every database of one server, and copies drifts to the home database.

Expected flow: soon after a session begins and once an hour, every database that has schema pgrole, whether or not any
role still declares privileges there: its event triggers go on recording. Within a minute after a drift of privileges
was recorded, or the last role gave up the database, only copies from there; and what was found in databases without
schema pgrole is recorded. In between, no connection is open and nothing is asked.

Guarantees: it runs beside the worker, on connections of its own, and connects to admitted databases of the session's
server only; an error costs this round of one database and ends no session.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NoReturn

import anyio

from pgrole_controller.controller.privileges.databases import Databases
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.capabilities import check_same_server
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_connection import DatabaseMissing, explain
from pgrole_controller.postgres.drift_history import MOST_RECORDED, record_at_home
from pgrole_controller.postgres.history_maintenance import copy_all, prune
from pgrole_controller.postgres.privileges.database_schema import inspect_database
from pgrole_controller.postgres.server_catalog import read_databases
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: Between two rounds of every database, before the first one, and between two checks for new drifts, in seconds.
PERIOD_SECONDS = 3600.0
FIRST_SECONDS = 60.0
CHECK_SECONDS = 60.0

_PURPOSE = "maintenance"


class Maintenance:
    """Of one session. `home`: name of the home database."""

    def __init__(self, config: Callable[[], ServerConfig], databases: Databases, session: Session, home: str) -> None:
        self._config = config
        self._databases = databases
        self._session = session
        self._home = home
        # Databases that have, or may have, a part of schema pgrole; None: not yet known
        self._installed: set[str] | None = None

    async def run(self) -> NoReturn:
        """Until cancelled. Raises nothing else."""
        due = anyio.current_time() + FIRST_SECONDS
        while True:
            await anyio.sleep(CHECK_SECONDS)
            await self.record_unstored()
            recorded = self._databases.take_recorded() | self._take_abandoned()
            if anyio.current_time() >= due:
                await self.tend_all()
                due = anyio.current_time() + PERIOD_SECONDS
            elif recorded:
                await self.tend(recorded, everything=False)

    @asynccontextmanager
    async def _connect(self, endpoint: Endpoint) -> AsyncIterator[Connection]:
        """A connection to the server of the session: after a failover, its address may lead to the former primary,
        whose leader is the same. Raises PgRoleError.
        """
        async with connect(endpoint, _PURPOSE) as connection:
            await check_same_server(connection, self._session.identity)
            yield connection

    async def record_unstored(self) -> None:
        """Records in the home database the drifts of databases that store nothing."""
        endpoint, session = self._config().endpoint, self._session
        if endpoint is None:
            return
        drifts = self._databases.take_unstored()
        if not drifts or not session.has_current_schema:
            return
        history, opening = self._config().history, session.claims.opening()
        try:
            async with self._connect(endpoint) as home:
                for start in range(0, len(drifts), MOST_RECORDED):
                    await record_at_home(home, drifts[start : start + MOST_RECORDED], history, opening, session.fence)
        except Exception as error:  # noqa: BLE001 -- it must not end the session
            self._databases.keep_unstored(drifts)
            self._warn(self._home, error)
        except BaseException:  # the session ends
            self._databases.keep_unstored(drifts)
            raise

    async def tend_all(self) -> None:
        """One round in every database with a part of schema pgrole."""
        endpoint, storing = self._config().endpoint, self._databases.storing()
        if self._installed is None and endpoint is not None:
            try:
                async with self._connect(endpoint) as home:
                    self._installed = {one.name for one in await read_databases(home) if one.connectable}
            except Exception as error:  # noqa: BLE001 -- it must not end the session
                self._warn(self._home, error)
        if self._installed is not None:
            self._installed |= storing
        await self.tend(storing | {name for name in self._installed or () if self._admits(name)}, everything=True)

    def _take_abandoned(self) -> set[str]:
        """Notes the databases that are no longer served. Returns those that are admitted."""
        abandoned = self._databases.take_abandoned()
        if self._installed is not None:
            self._installed |= abandoned
        return {name for name in abandoned if self._admits(name)}

    def _admits(self, database: str) -> bool:
        databases = self._config().databases
        return databases is not None and databases.admits(database)

    async def tend(self, names: set[str], *, everything: bool) -> None:
        """One round in these databases, and in the home database if `everything`."""
        endpoint, session = self._config().endpoint, self._session
        if endpoint is None or (session.fence is not None and not session.fence.is_leading()):
            return
        async with AsyncExitStack() as stack:
            home = None
            if session.has_current_schema:
                try:
                    home = await stack.enter_async_context(self._connect(endpoint))
                    if everything:
                        await prune(home, self._config().history, self._databases.cluster, session.fence)
                except Exception as error:  # noqa: BLE001 -- it must not end the session
                    self._warn(self._home, error)
            for name in sorted(names - {self._home} if session.has_current_schema else names):
                try:
                    await self._tend_database(name, endpoint, home, everything=everything)
                except Exception as error:  # noqa: BLE001 -- this database's error
                    if self._installed is not None and _is_missing(error, name):
                        self._installed.discard(name)
                    self._warn(name, error)

    async def _tend_database(self, name: str, endpoint: Endpoint, home: Connection | None, *, everything: bool) -> None:
        async with self._connect(endpoint.at(name)) as database:
            if name not in self._databases.storing() and not (await inspect_database(database)).present:
                if self._installed is not None:
                    self._installed.discard(name)
                return
            if home is not None and not home.is_closed():
                copied = await copy_all(database, home, self._session.fence)
                if copied:
                    log.debug("drifts copied to the home database", extra={"database": name, "count": copied})
            if everything:
                await prune(database, self._config().history, self._databases.cluster)

    def _warn(self, database: str, error: Exception) -> None:
        shown = {"error": error.message} if isinstance(error, PgRoleError) else describe_error(error)
        extra = {"server": self._config().name, "database": database, **shown}
        log.warning("history and events not pruned or copied, trying again within an hour", extra=extra)


def _is_missing(error: Exception, database: str) -> bool:
    return isinstance(error, PgRoleError) and isinstance(explain(error, database), DatabaseMissing)
