"""Texts of status and Events about drift and new objects in a database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pgrole_controller.core.errors import make_legible
from pgrole_controller.core.names import spell_name
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference, phrases
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, News, PrivilegeDrift, PrivilegeNews

#: Far below the limits of PostgreSQL and Kubernetes; people stop reading sooner.
MOST_WORDS = 5
_LONGEST_NOTE = 1000
_MOST_PHRASES = 10


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
