"""What is known of the privileges of one object's role: as published to its databases, and as they have reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgrole_controller.core.approval import RoleOffer, join_parts
from pgrole_controller.core.errors import PgRoleError, Reason, make_legible
from pgrole_controller.core.names import cut_middle, name_some, spell_name
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.kept_privileges import explain_former, find_answer
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult

#: Maximum number of databases in status.privileges: an object declares at most 16, and may have given up others.
_MOST_DATABASES = 32
#: Maximum number of characters of a message about one database. A condition's is longer: others have room, too.
LONGEST_OF_DATABASE = 1536
_LONGEST_CHANGE = 512
_WITHHELD = "while the object is refused, the controller grants nothing here"
_NAME = 63


@dataclass(frozen=True, slots=True)
class GrantedPrivileges:
    """What is known of one object's privileges after a reconcile.

    - `grantee`: as published; None: not published.
    - `results`: the latest of each database.
    - `problems`: databases in which nothing can be done, and why; they take precedence over results.
    """

    grantee: Grantee | None = None
    results: Mapping[str, PrivilegeResult] = field(default_factory=dict)
    problems: Mapping[str, PgRoleError] = field(default_factory=dict)

    def error_in(self, database: str) -> PgRoleError | None:
        """Returns why the privileges in this database are not as declared; None if they are, or if that is unknown."""
        result = self.current_result(database)
        error = self.problems.get(database) or (result.error if result else None)
        return error if error is None or self.declares(database) else explain_former(database, error)

    def declares(self, database: str) -> bool:
        """Whether the spec declares privileges there, rather than only former ones."""
        return self.grantee is None or database in self.grantee.declared

    def current_result(self, database: str) -> PrivilegeResult | None:
        """Returns the result about the current declaration."""
        return None if self.grantee is None else find_answer(self.results, self.grantee, database)

    @property
    def reported(self) -> tuple[str, ...]:
        """Differences that are not corrected, in words, with the database."""
        return tuple(
            f"{words} (database {spell_name(one.database)})" for one in self.current_results for words in one.reported
        )

    @property
    def unfit(self) -> bool:
        """Whether the object's annotation approves something other than what some database reports."""
        return any(one.unfit for one in self.current_results)

    @property
    def current_results(self) -> tuple[PrivilegeResult, ...]:
        """The results about the current declaration, ordered by database."""
        databases = sorted(self.grantee.databases) if self.grantee else ()
        return tuple(one for name in databases if (one := self.current_result(name)))

    @property
    def last_results(self) -> tuple[PrivilegeResult, ...]:
        """Every result of this object, current or not, ordered by database."""
        uid = self.grantee.uid if self.grantee else None
        return tuple(self.results[name] for name in sorted(self.results) if self.results[name].uid == uid)

    @property
    def may_repeat(self) -> bool:
        """Whether an earlier process may have announced some of the news."""
        return any(one.first for result in self.results.values() for one in result.news)

    def find_announced(self, status: Mapping[str, Any]) -> frozenset[str]:
        """Returns the databases whose reported differences the object's status has already, the very same."""
        before = status.get("privileges")
        if not isinstance(before, list):
            return frozenset()
        reported = (one for one in self.describe() if one["reason"] == Reason.DRIFT_REPORTED.value)
        return frozenset(one["database"] for one in reported if one in before)

    def describe(self) -> list[dict[str, Any]]:
        """Returns status.privileges: at most _MOST_DATABASES entries, those of declared databases first."""
        known = self.grantee.databases if self.grantee else ()
        kept = sorted(known, key=lambda name: (not self.declares(name), name))[:_MOST_DATABASES]
        return [self._describe(database) for database in sorted(kept)]

    def _describe(self, database: str) -> dict[str, Any]:
        error, result = self.error_in(database), self.current_result(database)
        if error is not None:
            return _entry(database, error.reason, error.message)
        if result is not None and result.reported:
            return _entry(database, Reason.DRIFT_REPORTED, name_some(result.reported, "; "))
        if not self.declares(database):
            done = "are being revoked" if result is None else "are revoked"
            return _entry(database, Reason.PROGRESSING, f"privileges that the object declared before {done}")
        if result is None:
            return _entry(database, Reason.PROGRESSING, "the privileges are being applied")
        if self.grantee is not None and self.grantee.refused:
            return _entry(database, Reason.PRIVILEGE_PENDING, _WITHHELD)
        return {"database": database, "ready": True, "reason": Reason.RECONCILED.value}


def describe_approval(offer: RoleOffer | None, privileges: GrantedPrivileges | None, handled: str) -> dict[str, Any]:
    """Returns status.approval: what a person can approve, and which annotations were handled; empty if nothing."""
    some = [one for one in privileges.current_results if one.offer or one.approve_handled] if privileges else []
    some = some[:_MOST_DATABASES]
    parts = ([offer.digest] if offer else []) + [one.offer.digest for one in some if one.offer]
    described: dict[str, Any] = {}
    if parts:
        described["digest"] = join_parts(parts)
    if offer:
        described["fields"] = [_field(name, offer.values.get(name, {})) for name in offer.fields]
    if some:
        described["databases"] = [_database(one) for one in some]
    if handled:
        described["handled"] = handled
    return described


def _field(name: str, values: Mapping[str, str]) -> dict[str, str]:
    return {"name": name, **{kind: make_legible(text, _LONGEST_CHANGE) for kind, text in values.items()}}


def _database(result: PrivilegeResult) -> dict[str, Any]:
    described: dict[str, Any] = {"name": make_legible(result.database, _NAME)}
    if result.offer:
        described["changes"] = [make_legible(words, _LONGEST_CHANGE) for words in result.offer.changes]
    if result.approve_handled:
        described["handled"] = result.approve_handled
    return described


def _entry(database: str, reason: Reason, message: str) -> dict[str, Any]:
    return {
        "database": database,
        "ready": False,
        "reason": reason.value,
        "message": cut_middle(make_legible(message), LONGEST_OF_DATABASE),
    }
