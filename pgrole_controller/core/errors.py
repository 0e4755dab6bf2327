"""Errors of one object, classified by what happens next.

::

    PgRoleError             reason (CamelCase, for the condition) and a message for the author of the object
     ├─ Waiting             a dependency is missing; reconciled again when it appears, and with back-off
     ├─ Refused             the object, the policy or another owner's role is at fault; reconciled again when
     │                      something changes, and with back-off
     │   └─ RefusedForNow   with back-off whatever the reason, since other roles may change so that it is accepted
     └─ Transient           network, lock, restart; retried with back-off
"""

import re
from enum import StrEnum
from typing import Self

#: Surrogates: they stand for bytes that are not UTF-8.
NOT_UTF8 = re.compile("[\ud800-\udfff]")


class Reason(StrEnum):
    """Reasons of the condition Ready."""

    RECONCILED = "Reconciled"
    PROGRESSING = "Progressing"
    SUSPENDED = "Suspended"
    CONFLICT = "Conflict"
    ROLE_EXISTS = "RoleExists"
    SERVER_NOT_READY = "ServerNotReady"
    SERVER_GONE = "ServerGone"
    MEMBERSHIP_PENDING = "MembershipPending"
    PRIVILEGE_PENDING = "PrivilegePending"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 -- a word
    NOT_ALLOWED = "NotAllowed"
    PROTECTED = "Protected"
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    CLAIMED_ELSEWHERE = "ClaimedElsewhere"
    CONTESTED = "Contested"
    DROP_BLOCKED = "DropBlocked"
    DATABASE_ERROR = "DatabaseError"
    DRIFT_REPORTED = "DriftReported"
    INTERNAL_ERROR = "InternalError"


class PgRoleError(Exception):
    """An error to report on the object. Its author reads `message`, which contains no secret and no SQL of ours."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.message = make_legible(message)
        super().__init__(self.message)
        self.reason = reason

    def reword(self, message: str) -> Self:
        """Returns the same error, with its cause, with another message."""
        reworded = type(self).__new__(type(self))  # some kinds make their message themselves
        reworded.__dict__ |= self.__dict__
        PgRoleError.__init__(reworded, self.reason, message)
        reworded.__cause__ = self.__cause__
        return reworded

    def extend(self, sentence: str) -> Self:
        """Returns the same error with another sentence in its message."""
        return self.reword(f"{self.message}. {sentence}")


_ILLEGIBLE = re.compile(
    "[\ud800-\udfff\x00-\x1f\x7f-\x9f\u2028-\u202e"
    # Unicode's Default_Ignorable_Code_Point: nothing is shown of them.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def make_legible(text: str, limit: int | None = None) -> str:
    """Returns a text that people and the API server read: names can have another encoding, and characters that move a
    terminal's cursor, reverse the direction of writing, or make two names look the same. `limit`: characters.
    """
    return _ILLEGIBLE.sub(_escape, text)[:limit]


def escape_bytes(text: str) -> str:
    """Returns the text with only bytes of another encoding escaped, as in messages, so that every reader accepts it."""
    return NOT_UTF8.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    """Renders a byte of a name in another encoding, or a character that cannot be seen, for people."""
    code = ord(character[0])
    if NOT_UTF8.fullmatch(character[0]):
        code &= 0xFF
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class Waiting(PgRoleError):
    pass


class WaitingForDatabases(Waiting):
    """The workers of databases go on by themselves, and request a reconcile when there is news."""


class DropInterrupted(Waiting):
    """DROP DATABASE was interrupted: PostgreSQL lets no one connect to the database, and it can only be dropped."""

    def __init__(self, database: str) -> None:
        super().__init__(
            Reason.PRIVILEGE_PENDING,
            f'database "{database}" can only be dropped, since its DROP DATABASE was interrupted: run DROP DATABASE '
            "again",
        )


class Refused(PgRoleError):
    pass


class RefusedForNow(Refused):
    pass


class Transient(PgRoleError):
    pass


def internal_error(error: Exception) -> Transient:
    """Wraps an unexpected error. Its text is left out, since it may quote a secret."""
    return Transient(
        Reason.INTERNAL_ERROR,
        f"unexpected error in the controller: {type(error).__name__}. The controller retries; see its log",
    )
