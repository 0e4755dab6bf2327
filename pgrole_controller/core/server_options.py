"""What a server's administrator chooses: how changes are detected, and what the controller may do in databases."""

from dataclasses import dataclass
from enum import StrEnum

from pgrole_controller.core.names import matches


class Mode(StrEnum):
    """A detection mode: as declared, or (except AUTO) as in effect."""

    AUTO = "Auto"  # the best one that the server supports
    WATCH = "Watch"  # schema pgrole announces every change
    POLL = "Poll"  # the digests of all roles are read every interval
    RESYNC = "Resync"  # only the periodic resync of every object


class DatabaseMode(StrEnum):
    """How changes of privileges in a database are detected: as declared, or (except AUTO) as in effect."""

    AUTO = "Auto"  # the best one that the database supports
    EVENTS = "Events"  # event triggers in schema pgrole announce every change
    POLL = "Poll"  # a fingerprint of all privileges is read every interval
    RESYNC = "Resync"  # only when everything is read again

    @property
    def uses_event_triggers(self) -> bool:
        return self in (DatabaseMode.AUTO, DatabaseMode.EVENTS)


class AuditSource(StrEnum):
    """Which log of the server the controller may read to find who caused a drift."""

    NEVER = "Never"
    PGAUDIT = "Pgaudit"
    STATEMENTS = "Statements"  # the statement log: top-level statements only, with passwords in clear text


#: Copied by CREATE DATABASE, which fails while the controller is connected to them.
TEMPLATES = ("template0", "template1")


@dataclass(frozen=True, slots=True)
class DatabasesConfig:
    """The databases that the controller may connect to. `match`, `but`: patterns of names with * and ?.

    `max`: how many have a connection of their own; the rest is polled in turn.
    """

    match: tuple[str, ...]
    but: tuple[str, ...] = ()
    max: int = 50
    detection: DatabaseMode = DatabaseMode.AUTO

    def admits(self, database: str) -> bool:
        return matches(database, self.match) and not matches(database, self.but)


@dataclass(frozen=True, slots=True)
class AttributionConfig:
    """How the cause of a drift is found, and whether status and Events show its address and statement."""

    audit_log: AuditSource = AuditSource.NEVER
    exposes_all: bool = False


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """What is kept about drifts in the databases. `addresses`: whether the client's address is stored."""

    retention_seconds: float = 90 * 86400.0
    max_rows: int = 1_000_000
    addresses: bool = True
