"""The result of reconciling one role's privileges in one database, and its texts for status and Events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from pgrole_controller.core.approval import PrivilegeOffer
from pgrole_controller.core.errors import PgRoleError, make_legible
from pgrole_controller.core.names import spell_name
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference, phrases
from pgrole_controller.core.request import Key

#: Far below the limits of PostgreSQL and Kubernetes; people stop reading sooner.
MOST_WORDS = 5
_LONGEST_NOTE = 1000
_MOST_PHRASES = 10


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
    reported: tuple[str, ...] = ()
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


def describe_drift(
    differences: Sequence[PrivilegeDifference], by: DriftAuthor, now: datetime, *, corrected: bool, exposed: bool
) -> PrivilegeDrift:
    """Describes one drift. `exposed`: address, application and statement may be shown."""
    shown = by if exposed else replace(by, application="", address="", statement="")
    words = tuple(map(make_legible, phrases(differences)))
    return PrivilegeDrift(by.time or now, words, len(differences), corrected, shown)


def combine_drifts(drifts: Sequence[PrivilegeDrift]) -> PrivilegeDrift:
    """Several drifts of one round, the latest last, as one: `by` is the latest's, and the words name the others'
    authors. At most 10 phrases, at least one for each author.
    """
    latest = drifts[-1]
    if len(drifts) == 1:
        return latest
    most = max(_MOST_PHRASES // len(drifts), 1)
    words: list[str] = []
    for one in reversed(drifts[-_MOST_PHRASES:]):
        shown = list(one.words[:most])
        if one.count > len(shown) and shown:
            shown[-1] += f", and {one.count - len(shown)} more"
        author = "" if one is latest else f" by {spell_name(one.by.login) if one.by.login else 'an unknown login'}"
        words += [f"{phrase}{author}" for phrase in shown]
    return replace(latest, words=tuple(words), count=sum(one.count for one in drifts))


def announce_drift(
    database: str, drift: PrivilegeDrift, differences: Sequence[PrivilegeDifference], *, first: bool = False
) -> PrivilegeNews:
    """`DELETE on table app.orders (database orders) was granted by alice at 16:04:09.113 and revoked`. `first`: as in
    PrivilegeNews.
    """
    reason = News.DRIFT_CORRECTED if drift.corrected else News.DRIFT_REPORTED
    return PrivilegeNews(reason, _cut(_sentence(database, drift, differences)), first)


def _sentence(database: str, drift: PrivilegeDrift, differences: Sequence[PrivilegeDifference]) -> str:
    where, by = f"(database {spell_name(database)})", _name(drift.by)
    if len(differences) == 1:
        (one,) = differences
        done, undone = ("granted", "revoked") if one.held else ("revoked", "granted again")
        end = f" and {undone}" if drift.corrected else f"; not corrected, since {_why_left(differences)}"
        return f"{one.what} {where} was {done}{by}{end}"
    words = "; ".join(phrases(tuple(differences), MOST_WORDS))
    end = "corrected" if drift.corrected else f"not corrected, since {_why_left(differences)}"
    return f"{len(differences)} privileges {where} were changed{by} and {end}: {words}"


def _why_left(differences: Sequence[PrivilegeDifference]) -> str:
    left = [one for one in differences if not one.declarable]
    if not left:
        return "spec.drift.policy is Report"
    if len(left) < len(differences):
        return "spec.drift.policy is Report, and no PgRole can declare some of them"
    return "no PgRole can declare them" if len(left) > 1 else "no PgRole can declare it: revoke it if it is not wanted"


def _name(by: DriftAuthor) -> str:
    if not by.login:
        return ""
    at = f" at {by.time.astimezone(UTC).strftime('%H:%M:%S.%f')[:-3]}" if by.time else ""
    return f" by {by.describe()}{at}"


def announce_extension(database: str, differences: Sequence[PrivilegeDifference]) -> PrivilegeNews:
    """Returns the news that privileges were granted on new objects, or that the policy allows now."""
    words = [one.what for one in differences[:MOST_WORDS]]
    if len(differences) > MOST_WORDS:
        words.append(f"and {len(differences) - MOST_WORDS} more")
    where = f"(database {spell_name(database)})"
    return PrivilegeNews(News.PRIVILEGES_EXTENDED, _cut(f"granted declared privileges {where}: {'; '.join(words)}"))


def _cut(note: str) -> str:
    note = make_legible(note)
    return note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 1]}…"
