"""Who may be setting roles back: sessions whose last statement looks like one about them."""

import logging
from collections.abc import Sequence

from pgrole_controller.core.contest import Suspect
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import fetch

log = logging.getLogger(__name__)

_SECONDS = 2.0


async def read_suspects(connection: Connection, role_names: Sequence[str]) -> dict[str, tuple[Suspect, ...]]:
    """By role name; a role with nobody to be seen is not in the result. Only what ends the session is raised."""
    try:
        query = queries.inspect("suspects")
        rows = await fetch(connection, "look_for_culprits", query, list(role_names), seconds=_SECONDS)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        log.warning("cannot query which sessions change roles back", extra={"error": error.message})
        return {}
    suspects: dict[str, tuple[Suspect, ...]] = {}
    for row in rows:
        try:
            role, user = row.get("role", str), row.get("usename", bytes).decode(errors="replace")
            seen = Suspect(user, row.find("application_name", str) or "", row.get("address", str))
        except PgRoleError as error:
            log.warning("session that changes roles back left out", extra={"error": error.message})
            continue
        suspects[role] = (*suspects.get(role, ()), seen)
    return suspects
