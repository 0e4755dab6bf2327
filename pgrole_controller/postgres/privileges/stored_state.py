"""What one database stores: what was last applied for each role, and whether a superuser suspended all changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgrole_controller import resources
from pgrole_controller.postgres.rows import Row
from pgrole_controller.postgres.single_row import SingleRow


@dataclass(frozen=True, slots=True)
class AppliedDigest:
    """What was last applied for one role in a database, by the object with uid `holder`. `last_drift`: as the repairing
    transaction stored it; only with a full read.
    """

    holder: str
    digest: str
    drift_count: int
    last_drift: Mapping[str, object] | None = None
    approve_handled: str = ""


@dataclass(frozen=True, slots=True)
class StoredState:
    """`suspended`: a superuser has suspended all changes, here or in the home database. `stores`: the database stores
    what was applied.
    """

    suspended: bool
    stores: bool
    _applied: Mapping[int, AppliedDigest]

    @classmethod
    def of(cls, row: Row, *, stores: bool) -> "StoredState":
        """`row`: of `ask_state`. Raises PgRoleError."""
        return cls(row.get("suspended", bool), stores, dict(_read_applied(row)) if stores else {})

    def find(self, role: int) -> AppliedDigest | None:
        """Returns what was last applied for the role with this oid; None if nothing was."""
        return self._applied.get(role)


def _read_applied(row: Row) -> Iterator[tuple[int, AppliedDigest]]:
    roles, drifts = row.some("roles", int), row.jsons("last_drifts")
    columns = (
        row.texts("holders"),
        row.texts("digests"),
        row.some("drift_counts", int),
        [one if type(one) is dict else None for one in drifts] or [None] * len(roles),
        row.texts("handled"),
    )
    if any(len(column) != len(roles) for column in columns):
        raise row.wrong("roles")
    return zip(roles, map(AppliedDigest, *columns), strict=True)


def ask_state(roles: Sequence[int], home: str, *, stores: bool, drifts: bool) -> SingleRow:
    """The question for `StoredState.of`. `home`: name of the home database. `drifts`: with the last drift of each."""
    if not stores:
        return SingleRow(resources.text("sql", "events", "suspended.sql"), (home,))
    return SingleRow(resources.text("sql", "events", "applied.sql"), (list(roles), home, drifts))
