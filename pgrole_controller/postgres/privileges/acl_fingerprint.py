"""A fingerprint of all privileges in one database, which differs whenever one of them was changed."""

import secrets
from contextlib import nullcontext
from datetime import datetime

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import fetch, first
from pgrole_controller.postgres.unnamed_statements import forgetting

_SECONDS = 15.0


class Fingerprints:
    """Compares each fingerprint of all privileges with the previous one. `often`: about once a second."""

    def __init__(self, connection: Connection, identity: Identity) -> None:
        self.often = False
        self._connection = connection
        self._started_at = identity.started_at
        self._key = secrets.randbits(64) - 2**63
        self._snapshot: str | None = None
        self._fingerprint: int | None = None

    async def compare(self) -> bool:
        """Whether it differs from the last one; False the first time. Raises PgRoleError."""
        with nullcontext() if self.often else forgetting():
            rows = await fetch(
                self._connection,
                "fingerprint",
                resources.text("sql", "events", "fingerprint.sql"),
                self._snapshot,
                self._key,
                seconds=_SECONDS,
                reason=Reason.SERVER_NOT_READY,
            )
        row = first(rows)
        if row.get("in_recovery", bool) or row.get("started_at", datetime) != self._started_at:
            raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
        before, known = self._fingerprint, self._snapshot is not None
        self._snapshot = row.get("snapshot", str)
        found = row.find("fingerprint", int)
        if found is None:
            return False
        self._fingerprint = found
        return known and found != before
