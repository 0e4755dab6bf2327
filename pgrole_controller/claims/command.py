"""Runs `claims`: lists claims, or shows a change, asks, and makes exactly that change.

The list is text (a table) for people or JSON for programs. Neither contains anything from a password.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import anyio
from rich.cells import cell_len

from pgrole_controller.claims.arguments import Arguments, ListArguments, ReleaseArguments, TransferArguments
from pgrole_controller.core.drift_record import rfc3339
from pgrole_controller.core.errors import PgRoleError, escape_bytes
from pgrole_controller.core.names import count_things
from pgrole_controller.ending import DONE, FAILED, escape_unencodable, make_printable, print_error
from pgrole_controller.postgres.claims import (
    ClaimedRoleState,
    ClaimsElsewhere,
    ListedClaim,
    Selection,
    claims_of,
    forget,
    list_claims,
    release,
    transfer,
)
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.errors import is_lacking, is_without_schema
from pgrole_controller.settings import DSN, WrongSetting

_HEADINGS = ("ROLE", "IN DATABASE", "CLUSTER", "OBJECT", "STATE", "APPLIED", "DRIFTS", "LAST DRIFT", "RELEASED")


def as_table(claims: Sequence[ListedClaim]) -> str:
    """Renders a table with headings, one row per claim."""
    rows = [_HEADINGS, *(tuple(make_printable(cell) for cell in _row(one)) for one in claims)]
    widths = [max(cell_len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    padded = ([cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "".join(f"{'   '.join(row).rstrip()}\n" for row in padded)


def as_json(claims: Sequence[ListedClaim]) -> str:
    """Renders a list of JSON objects; times are RFC 3339, unknown values are null."""
    return json.dumps([_object(one) for one in claims], indent=2) + "\n"


def state_of(one: ListedClaim) -> str:
    """Returns held, transferred (awaits its object) or released; a released one may fit any namespace of its name."""
    if one.released_at is None:
        return "transferred" if one.awaited else "held"
    return "released, for any namespace of that name" if one.awaited else "released"


def _row(one: ListedClaim) -> tuple[str, ...]:
    claim = one.claim
    drift = f"{_moment(claim.last_drift_at)} {', '.join(claim.last_drift_fields)}" if claim.last_drift_at else ""
    return (
        claim.role_name,
        f"renamed to {one.seen_as}" if one.role is ClaimedRoleState.RENAMED else one.role.value,
        claim.owner.cluster,
        str(claim.owner),
        state_of(one),
        "yes" if claim.applied else "no",
        str(claim.drift_count),
        drift,
        _moment(one.released_at) or "",
    )


def _object(one: ListedClaim) -> dict[str, Any]:
    claim, owner = one.claim, one.claim.owner
    drift = {"time": _moment(claim.last_drift_at), "fields": list(claim.last_drift_fields)}
    return {
        "role": claim.role_name,
        "roleOid": claim.role_oid,
        "systemIdentifier": str(claim.system_identifier),
        "inDatabase": one.role.value,
        "seenAs": escape_bytes(one.seen_as) or None,
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


def run(options: Arguments, dsn: str) -> int:
    """Returns the exit code. Raises WrongSetting if it must ask and no one can answer."""
    endpoint = Endpoint.of_dsn(dsn)
    escape_unencodable(sys.stdout)
    try:
        if isinstance(options, ListArguments):
            return _show(options, endpoint)
        return _change(options, endpoint)
    except PgRoleError as error:
        print_error(f"{error.message}{_hint(error)}")
        return FAILED


def _hint(error: PgRoleError) -> str:
    """What the author of PGROLE_DSN can do; the message is written for the administrator of a controller."""
    if is_lacking(error) or is_lacking(error.__cause__):
        return f". Better set {DSN.variable} to the controller's login: these privileges allow changes to all claims"
    if is_without_schema(error) or isinstance(error, ClaimsElsewhere):
        return f". Set {DSN.variable} to the home database, spec.connection.database of the PgServer"
    return ""


def _show(options: ListArguments, endpoint: Endpoint) -> int:
    selection = Selection(options.cluster, options.namespace, options.role, True if options.released else None)
    claims = anyio.run(_read, endpoint, selection)
    sys.stdout.write(as_json(claims) if options.output == "json" else as_table(claims))
    return DONE


def _change(options: ReleaseArguments | TransferArguments, endpoint: Endpoint) -> int:
    """Holds no connection while the user thinks, then compares the claims with those shown."""
    selection = _selection(options)
    everything = anyio.run(_read, endpoint, Selection())
    shown = [one for one in everything if _is_selected(one, selection)]
    if not shown:
        print(f"nothing to do: {_what_there_is(everything)}")  # noqa: T201
        return DONE
    sys.stdout.write(f"{as_table(shown)}\n{_intent(options, shown, everything)}\n")
    sys.stdout.flush()
    if not options.yes and not _is_agreed():
        print("nothing was changed", file=sys.stderr)  # noqa: T201
        return FAILED
    anyio.run(_carry_out, options, endpoint, selection, shown)
    print(f"done: {count_things(len(shown), 'claim')}")  # noqa: T201
    return DONE


def _selection(options: ReleaseArguments | TransferArguments) -> Selection:
    if isinstance(options, TransferArguments):
        # If the cluster stays the same, claims that stay with their namespace do not change.
        held_only = options.source == options.target and not options.with_released
        return Selection(options.source, options.namespace, released=False if held_only else None)
    return Selection(options.cluster, options.namespace, options.role, released=options.forget)


def _is_selected(one: ListedClaim, selection: Selection) -> bool:
    """The same selection as sql/claims/list.sql."""
    claim = one.claim
    return (
        selection.cluster in (None, claim.owner.cluster)
        and selection.namespace in (None, claim.owner.namespace)
        and selection.role in (None, claim.role_name)
        and selection.released in (None, claim.released)
    )


def _intent(
    options: ReleaseArguments | TransferArguments, shown: Sequence[ListedClaim], everything: Sequence[ListedClaim]
) -> str:
    """Describes the change, for the user to confirm."""
    if isinstance(options, TransferArguments):
        return _transfer_intent(options, shown, everything)
    claims = count_things(len(shown), "claim")
    if options.forget:
        return (
            f"to be forgotten: {claims}. No object takes these roles back, except one that still exists and whose "
            f"status says that it has the role; objects can still adopt them."
        )
    return (
        f"to be released: {claims}. The roles do not change, and objects can adopt them. "
        f"An object that still exists takes its role back at once, unless it is suspended or has no controller."
    )


def _transfer_intent(
    options: TransferArguments, shown: Sequence[ListedClaim], everything: Sequence[ListedClaim]
) -> str:
    kept = 0 if options.with_released else sum(one.claim.released for one in shown)
    lines = [f"to be transferred to cluster {options.target}: {count_things(len(shown), 'claim')}."]
    if kept < len(shown):
        lines.append("Each goes only to the object with the same namespace and name there, whatever its uid.")
    if kept:
        lines.append(
            f"Released claims ({kept}) stay with the namespace of the same uid (--with-released: any of that name)."
        )
    if not any(one.claim.owner.cluster == options.target for one in everything):
        lines.append(
            f"Cluster {options.target} has no claims yet: verify that this is the --cluster-id of its controller, "
            f"or the uid of its namespace kube-system."
        )
    return "\n".join(lines)


def _is_agreed() -> bool:
    if not sys.stdin.isatty():
        raise WrongSetting("no terminal to ask for confirmation, nothing was changed: use --yes")
    try:
        return input("continue? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()  # noqa: T201
        return False


def _what_there_is(everything: Sequence[ListedClaim]) -> str:
    if not everything:
        return "this database has no claims"
    held = Counter(one.claim.owner.cluster for one in everything if not one.claim.released)
    released = Counter(one.claim.owner.cluster for one in everything if one.claim.released)
    clusters = (f"{name} (held: {held[name]}, released: {released[name]})" for name in sorted({*held, *released}))
    return f"no claim matches; there are claims of cluster {', '.join(clusters)}"


async def _read(endpoint: Endpoint, selection: Selection) -> list[ListedClaim]:
    async with claims_of(endpoint) as connection:
        return await list_claims(connection, selection)


async def _carry_out(
    options: ReleaseArguments | TransferArguments,
    endpoint: Endpoint,
    selection: Selection,
    shown: Sequence[ListedClaim],
) -> None:
    async with claims_of(endpoint) as connection:
        if isinstance(options, TransferArguments):
            await transfer(connection, selection, shown, options.target, with_released=options.with_released)
        elif options.forget:
            await forget(connection, selection, shown)
        else:
            await release(connection, selection, shown)
