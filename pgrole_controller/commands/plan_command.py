"""The command `plan`: what applying PgRole files would do. Needs no cluster if a DSN names the server."""

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio

from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.commands.manifest_files import (
    DeclaredRole,
    DeclaredServer,
    Manifests,
    WrongDocument,
    read_manifests,
)
from pgrole_controller.commands.output import finish, make_console, write_document
from pgrole_controller.commands.plan_cluster import (
    ClusterView,
    created_at,
    current_namespace,
    open_client,
    read_cluster,
)
from pgrole_controller.commands.plan_conclusion import Subject
from pgrole_controller.commands.plan_model import PlannedObject, PlanReport, failed_object, join_reports
from pgrole_controller.commands.plan_output import print_plan, render_json, render_sql
from pgrole_controller.commands.planning import plan_server
from pgrole_controller.commands.server_reading import (
    SERVERS_AT_ONCE,
    ServerChoice,
    check_one_server,
    declare_from_file,
    declare_with_credentials,
    find_declared,
    of_dsn,
    read_each,
    server_choice,
    unreachable_server,
)
from pgrole_controller.controller.server_config import DEFAULT_SERVER, ServerConfig
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.names import count_things
from pgrole_controller.core.request import Key
from pgrole_controller.ending import DONE, FAILED
from pgrole_controller.imports import gc_paused
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.unvalidated import mapping, whole
from pgrole_controller.settings import WrongSetting

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

#: The exit code of `plan` and `diff` if something would change.
DIFFERENT = 3

#: Objects that are not in the cluster are younger than all that are, in the order of the files.
_NOT_YET = datetime(9998, 1, 1, tzinfo=UTC)

_POLICY_OF_DSN = "the policy is that of a controller with PGROLE_DSN"


def run(options: argparse.Namespace) -> int:
    """Raises WrongSetting."""
    choice = server_choice(options)
    return finish(lambda: _run(options.files, choice, options.output))


def _run(files: Sequence[str], choice: ServerChoice, output: str) -> int:
    with gc_paused():  # everything that is read is needed to the end
        manifests = read_manifests(files, current_namespace(choice.cluster))
        report = anyio.run(plan_files, manifests, choice)
        return show(report, output)


def show(report: PlanReport, output: str) -> int:
    """Prints a report to standard output. Returns the exit code."""
    if output == "json":
        write_document(render_json(report))
    elif output == "sql":
        write_document(render_sql(report))
    else:
        print_plan(make_console(), report)
    if report.failed:
        return FAILED
    return DIFFERENT if report.differs else DONE


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which objects in the files are on which server. `left`: how many name one other than --server."""

    by_server: dict[str, list[DeclaredRole]]
    left: int
    notes: tuple[str, ...]


async def plan_files(manifests: Manifests, choice: ServerChoice) -> PlanReport:
    """Raises WrongSetting, PgRoleError, ApiError, Unreachable, NotConfigured."""
    chosen = _choose(manifests.roles, choice)
    declared = {one.name: one for one in manifests.servers}
    async with AsyncExitStack() as stack:
        client = await open_client(stack, choice) if _needs_cluster(chosen, declared, choice) else None
        if client is not None and not chosen.by_server:
            await find_declared(client, choice.server or "", choice)  # raises Refused if there is none
        roles = [one for some in chosen.by_server.values() for one in some]
        view = ClusterView()
        if client is not None:
            view = await read_cluster(client, {one.key.namespace for one in roles}, required=False)
        reports = [PlanReport(tuple(map(_wrong, manifests.wrong)), (*chosen.notes, *view.notes))]
        subjects = {one.key: _subject(place, one, view, read=client is not None) for place, one in enumerate(roles)}
        servers: list[tuple[ServerConfig, Sequence[Subject]]] = []
        notes: list[PlanReport] = []
        for name, some in chosen.by_server.items():
            config, note = await _find(name, declared.get(name), client, choice)
            servers.append((config, [subjects[one.key] for one in some]))
            if note:
                notes.append(PlanReport((), (note,)))
        reports += [*await plan_servers(servers), *notes]
    return join_reports(reports)


async def plan_servers(
    servers: Sequence[tuple[ServerConfig, Sequence[Subject]]], asked: frozenset[Key] | None = None
) -> list[PlanReport]:
    """Returns the report of each server, in this order, as of `plan_server`."""
    return await read_each(servers, lambda one: plan_server(*one, asked), SERVERS_AT_ONCE)


def _choose(roles: Sequence[DeclaredRole], choice: ServerChoice) -> _Chosen:
    """Chooses by spec.serverRef. --server leaves out objects of others, and includes those that name none. Raises
    WrongSetting.
    """
    by_server: dict[str, list[DeclaredRole]] = {}
    left, moved = 0, 0
    for one in roles:
        name = one.server or DEFAULT_SERVER
        if choice.server is not None and one.server is None and name != choice.server:
            name, moved = choice.server, moved + 1
        if choice.server is not None and name != choice.server:
            left += 1
            continue
        by_server.setdefault(name, []).append(one)
    if choice.dsn is not None:
        check_one_server(by_server)
    notes = [*left_out(left, choice)]
    if moved:
        notes.append(
            f"{count_things(moved, 'object')} without spec.serverRef: compared with {choice.server}, but the "
            f"controller would use PgServer {DEFAULT_SERVER}"
        )
    return _Chosen(by_server, left, tuple(notes))


def left_out(objects: int, choice: ServerChoice) -> tuple[str, ...]:
    """Returns a note about objects that --server leaves out, or none."""
    if not objects:
        return ()
    return (f"{count_things(objects, 'object')} left out: spec.serverRef names another PgServer than {choice.server}",)


def _needs_cluster(chosen: _Chosen, declared: dict[str, DeclaredServer], choice: ServerChoice) -> bool:
    """With a DSN, only if the caller names a cluster, or a PgServer that is not in the files. If all objects are on
    others than this one, only to see that it exists.
    """
    if not chosen.by_server:
        return chosen.left > 0 and choice.server not in declared
    if choice.dsn is None or choice.cluster.named:
        return True
    return choice.server is not None and choice.server not in declared


async def _find(
    name: str, declared: DeclaredServer | None, client: "Client | None", choice: ServerChoice
) -> tuple[ServerConfig, str]:
    """Returns the server with its endpoint, or why it has none, and a note about where its policy comes from."""
    if choice.dsn is not None:
        from_dsn = of_dsn(choice.dsn)
        if declared is not None:
            return declare_from_file(declared.obj, from_dsn), ""
        if client is None:
            return replace(from_dsn, name=name), f"no PgServer in the files: {_POLICY_OF_DSN}"
    try:
        if client is None:
            raise WrongSetting(f'no server: set PGROLE_DSN, or use --kubeconfig to find PgServer "{name}"')
        if declared is not None:
            return await declare_with_credentials(client, declared.obj, choice.own_namespace), ""
        found = await find_declared(client, name, choice)
    except (PgRoleError, ApiError, BadStream, Unreachable) as error:
        return unreachable_server(name, error), ""
    return found, "" if found.uid else f"no PgServer is named {name}: {_POLICY_OF_DSN}"


def _subject(place: int, one: DeclaredRole, view: ClusterView, *, read: bool) -> Subject:
    """`read`: the view is of a cluster."""
    stored, namespace = view.roles.get(one.key), view.namespaces.get(one.key.namespace)
    metadata = mapping((stored or {}).get("metadata"))
    uid = str(metadata.get("uid") or "")
    created = created_at(stored) if stored else None
    created = created or _NOT_YET + timedelta(seconds=place)
    known = one.pgrole.metadata.model_copy(
        update={
            "uid": uid or f"new-{place}",
            "creation_timestamp": created,
            "generation": whole(metadata.get("generation")) + (not _has_same_spec(one, stored)),
            "deletion_timestamp": None,
        }
    )
    return Subject(
        one.key,
        one.pgrole.model_copy(update={"metadata": known, "status": None}),
        one.place,
        uid,
        namespace.uid if namespace else "",
        namespace.labels if namespace else None,
        mapping((stored or {}).get("status")),
        created,
        cluster_read=read,
    )


def _has_same_spec(one: DeclaredRole, stored: dict[str, Any] | None) -> bool:
    """Whether applying the object would keep its generation."""
    try:
        return stored is not None and read_pgrole(stored).spec == one.pgrole.spec
    except Invalid:
        return False


def _wrong(one: WrongDocument) -> PlannedObject:
    return failed_object(one.key, one.error, place=one.place)
