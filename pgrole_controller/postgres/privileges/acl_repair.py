"""The changes of one object's privileges, and the parts that they can be divided into."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange, ObservedAcl


@dataclass(frozen=True, slots=True)
class AclRepair:
    """All changes of one object, for all grantees, and the ACL that they were decided from.

    Its `entries` are of all `grantees` of `apply_acls`: none of them may lose what no change revokes.
    """

    observed: ObservedAcl
    changes: tuple[AclChange, ...]


class AclPart(NamedTuple):
    """A part of the changes of one object. `delegated`: someone other than the owner granted what is revoked."""

    grantee: int
    delegated: bool


def key_of(one: AclRepair | DefaultAclChange) -> Hashable:
    """Identifies what has one lock: an object, or the default privileges of one row of pg_default_acl."""
    if isinstance(one, AclRepair):
        return one.observed.object.id
    return one.creator, one.schema, one.object_type


def as_owner(repair: AclRepair) -> AclRepair:
    """What the owner granted is revoked in the owner's name: a role with grant options of its own otherwise revokes
    only what it granted itself, although it may act as the owner.
    """
    owner = repair.observed.object.owner_name
    changes = (replace(one, grantor=one.grantor or owner) if one.revoke else one for one in repair.changes)
    return replace(repair, changes=tuple(changes))


def part_of(change: AclChange) -> AclPart:
    return AclPart(change.grantee, change.revoke and change.grantor not in ("", change.object.owner_name))


def divide(repair: AclRepair) -> dict[AclPart, list[AclChange]]:
    """Returns the changes by grantee, first those that only revoke, since grants fail where an ACL is full; and after
    them (`delegated`) those that revoke what someone other than the owner granted, which may be impossible.
    """
    parts: dict[AclPart, list[AclChange]] = {}
    for one in repair.changes:
        parts.setdefault(part_of(one), []).append(one)
    return dict(sorted(parts.items(), key=lambda item: (item[0].delegated, not all(one.revoke for one in item[1]))))
