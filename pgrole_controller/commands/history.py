"""The command `history`: drifts from the database that keeps them, or from the status of PgRoles in the cluster."""

import argparse
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from rich.table import Table
from rich.text import Text

from pgrole_controller.commands.output import (
    NARROWEST,
    finish,
    make_console,
    render_document,
    spell_error,
    write_document,
)
from pgrole_controller.commands.server_reading import (
    ServerChoice,
    find_server,
    open_cluster,
    read_server,
    reading,
    server_choice,
)
from pgrole_controller.controller.objects import role_of, server_of
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.drift_record import rfc3339
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.listed_drift import (
    ListedDrift,
    describe,
    describe_fields,
    read_status_entry,
    select,
)
from pgrole_controller.ending import DONE, make_printable
from pgrole_controller.kube.errors import ApiError, NotConfigured, WrongKubeconfig
from pgrole_controller.kube.listing import list_pages
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.unvalidated import mapping, sequence
from pgrole_controller.postgres.history_listing import HistoryState, find_history, list_drifts
from pgrole_controller.program import spell_commands
from pgrole_controller.settings import WrongSetting

#: Maximum number of characters of a statement, and of what differed, in a cell; JSON has everything that is recorded.
_STATEMENT = 60
_CELL = 160

_STATUS_LACKS = (
    "drifts before the last ten of each PgRole",
    "the author's acting role, application, address and statement",
    "observed values",
)
_OTHER_DRIFTS = "drifts of roles, and of other databases: read the home database for these"
_NAMESPACES = "namespaces of PgRoles, so -n is ignored"
_LAST_MINUTE = "A drift in another database appears here within a minute, and with --database NAME at once."
_SERVER = "The DSN does not say which PgServer it belongs to, so drifts of all are shown: name one with --server."


@dataclass(frozen=True, slots=True)
class History:
    """What was found. `source`: where; `why`: why it is not the database; `lacks`: what the source does not record;
    `hint`: how to find more, or less, as a sentence.
    """

    source: str
    drifts: list[ListedDrift]
    since: datetime
    limit: int
    why: str = ""
    lacks: tuple[str, ...] = ()
    hint: str = ""

    @property
    def shown(self) -> list[ListedDrift]:
        return self.drifts[: self.limit]

    @property
    def truncated(self) -> bool:
        return len(self.drifts) > self.limit


def run(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises WrongSetting."""
    choice = server_choice(options)
    return finish(lambda: _show(anyio.run(_read, options, choice), options.output))


async def _read(options: argparse.Namespace, choice: ServerChoice) -> History:
    since = datetime.now(UTC) - timedelta(seconds=min(options.since, 100 * 365 * 86400.0))
    if choice.dsn is None and choice.server is None:
        if options.database is not None:
            raise WrongSetting("--database needs a server: set PGROLE_DSN, or use --server NAME")
        remedy = "Set PGROLE_DSN, or use --server NAME"
        return await _read_statuses(options, choice, since, "no server is named", remedy)
    server = await _find_server(choice)
    if server.endpoint is None:
        why = spell_error(server.problem) if server.problem is not None else "its address is unknown"
        if options.database is not None:
            raise Refused(Reason.SERVER_NOT_READY, why)
        return await _read_statuses(options, choice, since, why, "Set PGROLE_DSN")
    async with reading(server.endpoint, options.database) as connection:
        place = await find_history(connection)
        if place.state is HistoryState.READABLE:
            drifts = await list_drifts(connection, since, options.role, options.limit + 1)
            lacks = () if place.home else (_OTHER_DRIFTS,)
            if choice.cluster.namespace is not None:
                lacks = (*lacks, _NAMESPACES)
            hint = _LAST_MINUTE if place.home and not drifts else ""
            return History(f'database "{place.database}"', drifts, since, options.limit, lacks=lacks, hint=hint)
    why = f'database "{place.database}" has no history for "{place.login}": {place.state.value}'
    if options.database is not None:
        raise Refused(Reason.SERVER_NOT_READY, f"{why}. {_remedy(place.state, home=False)}")
    return await _read_statuses(options, choice, since, why, _remedy(place.state, home=True))


async def _find_server(choice: ServerChoice) -> ServerConfig:
    """Returns the server, without an endpoint if its Secret cannot be read: the cluster may know its drifts."""
    if choice.server is None:  # then flags name the cluster to read if the database has no history
        unnamed = replace(choice.cluster, kubeconfig=None, context=None)
        return await find_server(replace(choice, cluster=unnamed))
    if choice.dsn is not None:
        return await find_server(choice)
    async with open_cluster(choice.cluster) as client:
        return await read_server(client, choice.server, choice.own_namespace)


def _remedy(state: HistoryState, *, home: bool) -> str:
    """`home`: of the home database. What installs the schema there would make another database a second home."""
    if state is HistoryState.FORBIDDEN:
        return "Connect as a member of pg_monitor, or as the controller's role"
    if home:
        remedy = (
            "Connect to the home database, where an administrator can install the schema there with the output of "
            "`pgrole-controller sql`"
        )
    else:
        remedy = "An administrator can install the schema there with the output of `pgrole-controller sql --database`"
    return spell_commands(remedy)


async def _read_statuses(
    options: argparse.Namespace, choice: ServerChoice, since: datetime, why: str, remedy: str
) -> History:
    """Raises Refused if no cluster is configured; WrongKubeconfig, ApiError, Unreachable, BadStream."""
    try:
        async with open_cluster(choice.cluster) as client:
            found = [
                drift
                async for page in list_pages(client, PGROLES, choice.cluster.namespace)
                for obj in page
                if choice.server is None or server_of(obj) == choice.server
                for drift in _drifts_of(obj)
            ]
    except NotConfigured as error:
        if isinstance(error, WrongKubeconfig):
            raise
        raise Refused(Reason.SERVER_NOT_READY, f"{why}. {remedy}. The cluster cannot be read: {error}") from error
    except ApiError as error:
        if error.status != 403 or choice.cluster.namespace is not None:
            raise
        text = f"{why}. You may not list PgRoles in all namespaces: name one with -n"
        raise Refused(Reason.SERVER_NOT_READY, text) from error
    where = f"namespace {choice.cluster.namespace}" if choice.cluster.namespace else "all namespaces"
    drifts = select(found, since, options.role)
    hint = "" if choice.dsn is None or choice.server is not None else _SERVER
    return History(f"status.driftHistory of PgRoles in {where}", drifts, since, options.limit, why, _STATUS_LACKS, hint)


def _drifts_of(obj: dict[str, Any]) -> list[ListedDrift]:
    metadata = mapping(obj.get("metadata"))
    owner = f"{metadata.get('namespace')}/{metadata.get('name')}"
    role = role_of({**obj, "metadata": {"name": "", **metadata}})
    entries = sequence(mapping(obj.get("status")).get("driftHistory"))
    drifts = [read_status_entry(mapping(entry), role, owner) for entry in entries]
    return [one for one in drifts if one is not None]


def _show(history: History, output: str) -> int:
    if output == "json":
        write_document(as_json(history))
        return DONE
    console = make_console(least=NARROWEST)
    for line in as_notes(history):
        make_console(sys.stderr).print(make_printable(line), style="dim")
    if history.shown:
        console.print(as_table(history.shown))
    else:
        console.print(f"No drift since {rfc3339(history.since)}.")
    return DONE


def as_json(history: History) -> str:
    """Returns the form that docs/doctor.md documents."""
    shape = {
        "source": history.source,
        "instead": history.why or None,
        "lacks": list(history.lacks),
        "since": rfc3339(history.since),
        "truncated": history.truncated,
        "drifts": [describe(drift) for drift in history.shown],
    }
    return render_document(shape)


def as_notes(history: History) -> list[str]:
    """Returns what the reader must know about the table: its source, what that lacks, and whether rows are left out."""
    notes = [f"From {history.source}" + (f", because {history.why}." if history.why else ".")]
    if history.lacks:
        notes.append(f"It lacks: {'; '.join(history.lacks)}.")
    if history.hint:
        notes.append(history.hint)
    if history.truncated:
        notes.append(f"Only the latest {history.limit} are shown: choose others with --since or --limit.")
    return notes


def as_table(drifts: list[ListedDrift]) -> Table:
    """Latest first, like git log; times in UTC."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("TIME (UTC)", "ROLE", "DATABASE", "WHAT", "WHO", "PROOF", "RESULT", "COUNT"):
        table.add_column(
            heading,
            overflow="fold",
            justify="right" if heading == "COUNT" else "left",
            no_wrap=heading not in ("ROLE", "DATABASE", "WHAT", "WHO"),
        )
    for drift in drifts:
        what = _shorten(describe_fields(drift), _CELL)
        if drift.by.statement:
            what += f" [{_shorten(drift.by.statement, _STATEMENT)}]"
        table.add_row(
            rfc3339(drift.last_at).removesuffix("Z").replace("T", " "),
            *(Text(make_printable(text)) for text in (drift.role, drift.database or "-", what)),
            Text(make_printable(drift.by.describe())),
            drift.by.proof.value,
            Text("corrected", style="green") if drift.corrected else Text("reported", style="yellow"),
            str(drift.count),
        )
    return table


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
