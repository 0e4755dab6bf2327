"""Approval to correct drift that is reported under drift.policy: Report.

Expected flow: status.approval.digest identifies the reported drift, as parts joined by `+`: one for the role, and one
for each database whose privileges differ. A person sets the annotation `pgrole.dev/approve` to `<digest>/<text>`. The
home database's worker corrects the role if the role's part is in it, each database's worker corrects the privileges
there if that database's part is in it. The transaction that corrects stores the annotation as handled.

Guarantees: a part covers everything that the decision depends on, so nothing but what was shown is corrected; a
handled annotation never acts again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass

from pgrole_controller.core.errors import make_legible
from pgrole_controller.core.password import request_of
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange
from pgrole_controller.core.role import Password

#: The annotation. A value is handled once; another text after the slash makes it another value.
APPROVE = "pgrole.dev/approve"

#: Maximum number of characters read of an annotation: the parts of a role and 32 databases take about 1,100.
LONGEST = 2048

_PART = 32
_HEXADECIMAL = frozenset("0123456789abcdef")
_LONGEST_TEXT = 64


@dataclass(frozen=True, slots=True)
class Approval:
    """What an object's annotation approves. `value`: identifies the annotation, as it is stored once handled; empty
    without one. `text`: what follows the digest; anyone who may edit the object can write any text.
    """

    value: str = ""
    parts: frozenset[str] = frozenset()
    text: str = ""

    def covers(self, part: str, handled: str) -> bool:
        """Tells whether it approves the drift with this digest. `handled`: the annotation handled last."""
        return self.is_open(handled) and part in self.parts

    def is_open(self, handled: str) -> bool:
        return bool(self.value) and self.value != handled


#: Shown in the condition of an object whose annotation approves another drift, or nothing.
UNFIT = (
    f"annotation {APPROVE} does not approve this drift, or has more than {LONGEST:,} characters, so nothing is "
    "corrected: run pgrole-controller approve again"
)


@dataclass(frozen=True, slots=True)
class RoleOffer:
    """Drift of a role that can be approved. `values`: by field, declared and observed, for people; some have none, and
    those of a plan are added when it is reported.
    """

    digest: str
    fields: tuple[str, ...]
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrivilegeOffer:
    """Drift of privileges in one database that can be approved. `changes`: what happened, in words."""

    digest: str
    changes: tuple[str, ...]


def read_approval(annotation: str | None) -> Approval:
    """Reads the annotation. An annotation in another form approves nothing."""
    value = request_of(annotation)
    if not annotation or len(annotation) > LONGEST:
        return Approval(value)
    digest, slash, text = annotation.partition("/")
    parts = digest.split("+")
    if not (slash and text and all(len(part) == _PART and _HEXADECIMAL.issuperset(part) for part in parts)):
        return Approval(value)
    return Approval(value, frozenset(parts), text)


def tell_approval(approval: Approval) -> str:
    """Returns the text for an Event: it is the approver's own, unverified."""
    text = make_legible(approval.text, _LONGEST_TEXT)
    return f'approved by annotation {APPROVE}; the approver\'s text "{text}" is unverified'


def digest_role_drift(
    place: Sequence[object], changes: Iterable[object], observed: Mapping[str, object], password_key: str
) -> str:
    """Returns the digest of a role's reported drift.

    `place`: identifies object, role and declaration. `observed`: the role's values by field. `password_key`: the digest
    of the verifier set last, which only the claim has. It distinguishes one observed password from another, and no one
    who reads the resulting digest can test guesses of a password.
    """
    described = [_canonical(one, password_key) for one in changes]
    return _digest("role", [_canonical(tuple(place), ""), described, _canonical(dict(observed), password_key)])


def digest_privilege_drift(
    place: Sequence[object], changes: Iterable[AclChange], default_changes: Iterable[DefaultAclChange]
) -> str:
    """Returns the digest of what would be granted and revoked in one database. `place`: identifies object, role,
    database and declaration.
    """
    described = [
        [
            *one.object.id,
            one.object.kind,
            one.object.schema,
            one.object.name,
            one.object.arguments,
            one.object.owner,
            one.privileges,
            one.columns,
            one.revoke,
            one.grantor,
            one.option_only,
        ]
        for one in changes
    ]
    defaults = [
        [one.creator, one.schema, one.object_type, one.privileges, one.revoke, one.option_only]
        for one in default_changes
    ]
    ordered = [sorted(some, key=lambda one: json.dumps(one)) for some in (described, defaults)]
    return _digest("database", [_canonical(tuple(place), ""), *ordered])


def join_parts(parts: Iterable[str]) -> str:
    """Returns status.approval.digest."""
    return "+".join(dict.fromkeys(parts))


def _digest(kind: str, content: object) -> str:
    text = json.dumps([kind, content], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_PART]


def _canonical(value: object, password_key: str) -> object:
    """Renders as JSON, without a password to be set: it is hashed with another salt each time."""
    match value:
        case Password():
            return _describe_password(value, password_key)
        case Mapping():
            return {str(name): _canonical(one, password_key) for name, one in value.items()}
        case list() | tuple():
            return [_canonical(one, password_key) for one in value]
        case _ if is_dataclass(value):
            compared = [one.name for one in fields(value) if one.compare]
            return [type(value).__name__, {name: _canonical(getattr(value, name), password_key) for name in compared}]
    return value


def _describe_password(password: Password, key: str) -> str:
    if password.verifier is not None or not key:
        return "a password"
    return hashlib.sha256(f"{key}/{password.digest}".encode(errors="surrogateescape")).hexdigest()
