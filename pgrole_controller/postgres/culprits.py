"""Who may be setting roles back: sessions whose last statement looks like one about them."""

import logging
from collections.abc import Sequence

from pgrole_controller.core.contest import Culprit
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking

log = logging.getLogger(__name__)

_SECONDS = 2.0


async def look_for_culprits(connection: Connection, role_names: Sequence[str]) -> dict[str, tuple[Culprit, ...]]:
    """By role name; a role with nobody to be seen is not in the result. Only what ends the session is raised."""
    try:
        with speaking("look_for_culprits"):
            rows = await connection.fetch(queries.inspect("culprits"), list(role_names), timeout=_SECONDS)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        log.warning("who sets roles back cannot be asked", extra={"error": error.message})
        return {}
    culprits: dict[str, tuple[Culprit, ...]] = {}
    for row in rows:
        user = row["usename"].decode(errors="replace")
        seen = Culprit(user, row["application_name"] or "", row["address"])
        culprits[row["role"]] = (*culprits.get(row["role"], ()), seen)
    return culprits
