"""The one database of a server that schema pgrole lives in: recorded where every database of the server sees it.

Claims and locks live in one database, roles in the whole server: two controllers with a home each would contest
roles that either has claimed for itself. The record is a setting of the database, `pgrole.home`, which only superusers
can set.
"""

import logging
from dataclasses import dataclass

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import fetch_row

log = logging.getLogger(__name__)

#: Of which databases it was said already that they are not recorded: system identifier and name.
_SAID: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True)
class Home:
    """`database` is the one that we are in, `elsewhere` others that are recorded and come first: quoted names."""

    database: str
    recorded: bool
    elsewhere: tuple[str, ...]
    may_record: bool


async def read_home(connection: Connection) -> Home:
    row = await fetch_row(connection, "", queries.inspect("home"))
    return Home(
        database=_text(row["database"]),
        recorded=row["recorded"],
        elsewhere=tuple(_text(name) for name in row["elsewhere"]),
        may_record=row["may_record"],
    )


def check_only(home: Home) -> None:
    """Raises Refused when another database of the server is the home."""
    if home.elsewhere:
        other = home.elsewhere[0]
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"schema pgrole on this server is in home database {other}, whose claims a second home, {home.database}, "
            f"would not know. Name database {other}; or, to move the home, DROP SCHEMA pgrole CASCADE there and, as a "
            f"superuser, ALTER DATABASE {other} RESET pgrole.home",
        )


async def record_home(connection: Connection) -> None:
    """Records the database that we are in, where we may; else says once what a superuser can do."""
    home = await read_home(connection)
    if not home.recorded and home.may_record:
        await connection.execute(resources.text("sql", "install", "07_home.sql"))
        home = await read_home(connection)  # another may have been recorded in the same moment
        log.info("home database recorded", extra={"database": home.database})
    check_only(home)
    if not home.recorded:
        await _report_unrecorded(connection, home)


async def _report_unrecorded(connection: Connection, home: Home) -> None:
    server = await connection.fetchval("SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s")
    if (server, home.database) not in _SAID:
        _SAID.add((server, home.database))
        remedy = f"ALTER DATABASE {home.database} SET pgrole.home = 'on'"
        log.info("home database not recorded: only a superuser can record it", extra={"remedy": remedy})


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
