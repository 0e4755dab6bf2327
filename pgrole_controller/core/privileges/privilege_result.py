"""The result of reconciling one role's privileges in one database, for the object's status and Events."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pgrole_controller.core.approval import PrivilegeOffer
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.names import spell_name
from pgrole_controller.core.request import Key


class Evidence(StrEnum):
    """What proves who caused a drift."""

    TRANSACTION = "Transaction"  # the event, or pgaudit's line, carries the transaction's id
    LOG = "Log"
    STATISTICS = "Statistics"  # names the login only
    SESSION = "Session"  # a session that was connected and may have done it
    NONE = "None"


@dataclass(frozen=True, slots=True)
class DriftAuthor:
    """Who caused a drift. Empty texts are unknown. `application`, `address` and `statement` can be forged, or belong to
    a pooler; `statement` is cut at 1,000 characters, and empty for role DDL.
    """

    proof: Evidence = Evidence.NONE
    login: str = ""
    role: str = ""  # acted as
    application: str = ""
    address: str = ""
    time: datetime | None = None
    statement: str = ""

    def describe(self) -> str:
        """Returns the login and the role it acted as, with application and address, as far as they are known."""
        if not self.login:
            return "unknown"
        acting = f" as {spell_name(self.role)}" if self.role and self.role != self.login else ""
        beside = ", ".join(filter(None, (self.application and spell_name(self.application), self.address)))
        return f"{spell_name(self.login)}{acting}" + (f" ({beside})" if beside else "")


@dataclass(frozen=True, slots=True)
class PrivilegeDrift:
    """One drift of a role's privileges in one database.

    `words`: what happened, one phrase each, e.g. `DELETE on table app.orders was granted`; at most 10, then a count.
    `count`: number of ACL entries. `corrected` False: only reported.
    """

    time: datetime
    words: tuple[str, ...]
    count: int
    corrected: bool
    by: DriftAuthor = DriftAuthor()


class News(StrEnum):
    """Reasons of Events about privileges."""

    DRIFT_CORRECTED = "DriftCorrected"
    DRIFT_REPORTED = "DriftReported"
    PRIVILEGES_EXTENDED = "PrivilegesExtended"


@dataclass(frozen=True, slots=True)
class PrivilegeNews:
    """Something to announce once: an Event's reason and its note, which is for people and at most 1,024 characters.

    `first`: from the first complete read of a process, so that an earlier process may have announced it.
    """

    reason: News
    note: str
    first: bool = False


@dataclass(frozen=True, slots=True)
class AdoptionFindings:
    """What the adoption of a role would mean in one database; of each kind the first few by name, in words such as
    `DELETE on table app.orders`, and the number of all.

    `revoked`: what the role would lose. `beyond`: what its object could not declare.
    """

    revoked: tuple[str, ...] = ()
    revoked_count: int = 0
    beyond: tuple[str, ...] = ()
    beyond_count: int = 0


@dataclass(frozen=True, slots=True)
class PrivilegeResult:
    """The result for one key in one database.

    - `digest`: the `Grantee.digest_of(database)` that this result is about; any other declaration is not answered yet.
    - `error`: None if everything declared there was read back, and nothing else was found.
    - `confirmed`: nothing that only `Grantee.former` granted is left, so the claim may forget it.
    - `drift_count`: corrected in this database since the role was first applied there.
    - `last_drifts`: of the last round with drift in this database, one for each author, the latest last. `reported`:
      what differs now and is not changed, in words; `declarable`: a PgRole can declare some of it.
    - `earlier_drifts`: the last ones corrected before these, as far as this process knows. Several rounds may end
      between two writes of status.
    - `told`: `reported` of the last result in which no error hid it.
    - `news`: since the last result of this key, to be announced once.
    - `offer`: what of `reported` a person can approve. `approve_handled`: the approval by which drift was corrected
      last. `unfit`: the object's annotation approves something else.
    - `adoption`: of an adoptee; None: not compared.
    """

    key: Key
    uid: str
    database: str
    digest: str
    error: PgRoleError | None = None
    confirmed: bool = False
    drift_count: int = 0
    last_drifts: tuple[PrivilegeDrift, ...] = ()
    earlier_drifts: tuple[PrivilegeDrift, ...] = ()
    reported: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    declarable: bool = True
    news: tuple[PrivilegeNews, ...] = ()
    offer: PrivilegeOffer | None = None
    approve_handled: str = ""
    unfit: bool = False
    adoption: AdoptionFindings | None = None

    @property
    def last_drift(self) -> PrivilegeDrift | None:
        """The latest."""
        return self.last_drifts[-1] if self.last_drifts else None
