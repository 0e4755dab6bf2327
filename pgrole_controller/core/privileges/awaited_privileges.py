"""What of a declaration waits to be granted for the first time: policy denies it, or its object does not exist.

It is kept with the digest that was last applied. So it is granted as a part of the declaration once that is possible:
it is no drift, is granted under policy Report and while privileges are ignored, and also after a restart.

A mark names something that waits. Whether policy denies a privilege does not depend on an object's name, so one mark
stands for all equal objects, however many there are.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from pgrole_controller.core.policy import FIRST_NORMAL_OID
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectKind

#: Maximum number of marks that are kept for one role in one database. What exceeds it may count as drift.
MOST_AWAITED = 500


@dataclass(frozen=True, slots=True)
class AppliedDeclaration:
    """What was last applied for a role in a database. `digest`: as Grantee.digest_of, empty if nothing was. `awaited`:
    digests of marks.
    """

    digest: str = ""
    awaited: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "AppliedDeclaration":
        """The inverse of `text`. Another version's text may have a digest alone."""
        digest, _, awaited = text.partition(" ")
        return cls(digest, frozenset(awaited.split()))

    @classmethod
    def of(cls, digest: str, marks: Collection[str]) -> "AppliedDeclaration":
        return cls(digest, frozenset(sorted({digest_mark(mark) for mark in marks})[:MOST_AWAITED]))

    @property
    def text(self) -> str:
        return " ".join((self.digest, *sorted(self.awaited)))

    def awaits(self, *marks: str) -> bool:
        return bool(self.awaited) and any(digest_mark(mark) in self.awaited for mark in marks)


@lru_cache(4096)
def digest_mark(mark: str) -> str:
    return blake2b(mark.encode(errors="surrogatepass"), digest_size=4).hexdigest()


def mark_denied(obj: DatabaseObject, privilege: str, *, literal: bool) -> str:
    """Of everything on which the answer of `privilege_policy.why_not_granted` depends, except the policy."""
    traits = (obj.owner, obj.elevated, obj.extension, obj.id.oid < FIRST_NORMAL_OID, literal)
    return f"denied {privilege} {obj.kind} {traits} {obj.schema}"


def mark_column(obj: DatabaseObject, column: str) -> str:
    return f"column {obj.id.oid} {column}"


def mark_schema(schema: str) -> str:
    return f"schema {schema}"


def mark_object(kind: ObjectKind, schema: str, name: str) -> str:
    """`name`: for routines with or without argument types, which do not count."""
    bare = name.partition("(")[0] if kind is ObjectKind.ROUTINE else name
    return f"{kind.widest} {schema}\0{bare}"


def mark_default(place: str, privilege: str = "") -> str:
    """`place`: as in PrivilegeDifference. Without a privilege: all of them."""
    return f"default {privilege} {place}"
