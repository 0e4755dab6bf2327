"""Claims as text: a table for people, JSON for programs. Neither has anything of a password."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pgrole_controller.core.status import rfc3339
from pgrole_controller.postgres.claims import Listed, Whereabouts

_HEADINGS = ("ROLE", "IN DATABASE", "CLUSTER", "OBJECT", "STATE", "APPLIED", "DRIFTS", "LAST DRIFT", "RELEASED")


def as_table(claims: Sequence[Listed]) -> str:
    """A row for each claim, under headings."""
    rows = [_HEADINGS, *(tuple(_printable(cell) for cell in _row(one)) for one in claims)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def as_json(claims: Sequence[Listed]) -> str:
    """A list of objects; moments are RFC 3339, what is not known is null."""
    return json.dumps([_object(one) for one in claims], indent=2) + "\n"


def state_of(one: Listed) -> str:
    """held · transferred (awaits its object) · released; a released one can be for any namespace of its name."""
    if one.released_at is None:
        return "transferred" if one.awaited else "held"
    return "released, for any namespace of that name" if one.awaited else "released"


def _row(one: Listed) -> tuple[str, ...]:
    claim = one.claim
    drift = f"{_moment(claim.last_drift_at)} {', '.join(claim.last_drift_fields)}" if claim.last_drift_at else ""
    return (
        claim.role_name,
        f"renamed to {one.seen_as}" if one.role is Whereabouts.RENAMED else one.role.value,
        claim.owner.cluster,
        str(claim.owner),
        state_of(one),
        "yes" if claim.applied else "no",
        str(claim.drift_count),
        drift,
        _moment(one.released_at) or "",
    )


def _object(one: Listed) -> dict[str, Any]:
    claim, owner = one.claim, one.claim.owner
    drift = {"time": _moment(claim.last_drift_at), "fields": list(claim.last_drift_fields)}
    return {
        "role": claim.role_name,
        "roleOid": claim.role_oid,
        "systemIdentifier": str(claim.system_identifier),
        "inDatabase": one.role.value,
        "seenAs": one.seen_as or None,
        "cluster": owner.cluster,
        "namespace": owner.namespace,
        "namespaceUid": owner.namespace_uid or None,
        "object": owner.object,
        "objectUid": owner.object_uid,
        "state": "released" if one.released_at else state_of(one),
        "applied": claim.applied or None,
        "driftCount": claim.drift_count,
        "lastDrift": drift if claim.last_drift_at else None,
        "releasedAt": _moment(one.released_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)


def _printable(text: str) -> str:
    """A role's name can hold anything, also what a terminal would act on."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
