"""What `claims` does: shows what it is about, asks, and changes just that."""

import os
import sys
from collections import Counter
from collections.abc import Sequence

import anyio

from pgrole_controller.claims.arguments import Arguments, ListArguments, ReleaseArguments, TransferArguments
from pgrole_controller.claims.listing import as_json, as_table
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.dsn import split_methods, verifies_by_default
from pgrole_controller.postgres.claims import (
    Listed,
    Selection,
    claims_of,
    forget,
    list_claims,
    release,
    transfer,
)
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.settings import WrongSetting

DONE = 0
FAILED = 1


def run(options: Arguments, dsn: str) -> int:
    """The exit code. Raises WrongSetting where it would have to ask and nobody can answer."""
    plain, methods = split_methods(dsn)
    endpoint = Endpoint(plain, ssl="verify-full" if verifies_by_default(dsn) else None, methods=methods)
    try:
        if isinstance(options, ListArguments):
            return _show(options, endpoint)
        return _change(options, endpoint)
    except PgRoleError as error:
        print(f"pgrole-controller: {error.message}", file=sys.stderr)  # noqa: T201
        return FAILED


def _show(options: ListArguments, endpoint: Endpoint) -> int:
    selection = Selection(options.cluster, options.namespace, options.role, True if options.released else None)
    claims = anyio.run(_read, endpoint, selection)
    try:
        sys.stdout.write(as_json(claims) if options.output == "json" else as_table(claims))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough; what is left in the buffer is not written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _change(options: ReleaseArguments | TransferArguments, endpoint: Endpoint) -> int:
    """No connection is held while somebody thinks: what is changed is compared with what was shown."""
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
    print(f"done: {_count(shown)}")  # noqa: T201
    return DONE


def _selection(options: ReleaseArguments | TransferArguments) -> Selection:
    if isinstance(options, TransferArguments):
        # Under the same id nothing changes for what stays with its very namespace.
        held_only = options.source == options.target and not options.with_released
        return Selection(options.source, options.namespace, released=False if held_only else None)
    return Selection(options.cluster, options.namespace, options.role, released=options.forget)


def _is_selected(one: Listed, selection: Selection) -> bool:
    """As sql/claims/list.sql."""
    claim = one.claim
    return (
        selection.cluster in (None, claim.owner.cluster)
        and selection.namespace in (None, claim.owner.namespace)
        and selection.role in (None, claim.role_name)
        and selection.released in (None, claim.released)
    )


def _intent(
    options: ReleaseArguments | TransferArguments, shown: Sequence[Listed], everything: Sequence[Listed]
) -> str:
    """What will be done, for a person to agree to."""
    if isinstance(options, TransferArguments):
        return _transfer_intent(options, shown, everything)
    if options.forget:
        return f"to be forgotten: {_count(shown)}. No object takes these roles back; objects can still adopt them."
    return (
        f"to be released: {_count(shown)}. The roles do not change, and objects can adopt them. "
        f"An object that still exists takes its role back at once, unless it is suspended or has no controller."
    )


def _transfer_intent(options: TransferArguments, shown: Sequence[Listed], everything: Sequence[Listed]) -> str:
    kept = 0 if options.with_released else sum(one.claim.released for one in shown)
    lines = [f"to be transferred to cluster {options.target}: {_count(shown)}."]
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


def _what_there_is(everything: Sequence[Listed]) -> str:
    if not everything:
        return "this database has no claims"
    held = Counter(one.claim.owner.cluster for one in everything if not one.claim.released)
    released = Counter(one.claim.owner.cluster for one in everything if one.claim.released)
    clusters = (f"{name} (held: {held[name]}, released: {released[name]})" for name in sorted({*held, *released}))
    return f"no claim matches; there are claims of cluster {', '.join(clusters)}"


def _count(claims: Sequence[Listed]) -> str:
    return "1 claim" if len(claims) == 1 else f"{len(claims)} claims"


async def _read(endpoint: Endpoint, selection: Selection) -> list[Listed]:
    async with claims_of(endpoint) as connection:
        return await list_claims(connection, selection)


async def _carry_out(
    options: ReleaseArguments | TransferArguments, endpoint: Endpoint, selection: Selection, shown: Sequence[Listed]
) -> None:
    async with claims_of(endpoint) as connection:
        if isinstance(options, TransferArguments):
            await transfer(connection, selection, shown, options.target, with_released=options.with_released)
        elif options.forget:
            await forget(connection, selection, shown)
        else:
            await release(connection, selection, shown)
