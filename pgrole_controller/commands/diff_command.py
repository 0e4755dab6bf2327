"""The command `diff`: where roles differ from their PgRoles in the cluster now."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.commands.output import finish
from pgrole_controller.commands.plan_cluster import ClusterView, created_at, current_namespace, read_cluster
from pgrole_controller.commands.plan_command import left_out, plan_servers, show
from pgrole_controller.commands.plan_conclusion import Subject
from pgrole_controller.commands.plan_model import PlannedObject, PlanReport, failed_object, join_reports
from pgrole_controller.commands.server_reading import (
    ServerChoice,
    check_one_server,
    find_declared,
    open_cluster,
    server_choice,
    unreachable_server,
)
from pgrole_controller.controller.objects import server_of
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.request import Key
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.unvalidated import mapping
from pgrole_controller.settings import WrongSetting

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client


def run(options: argparse.Namespace) -> int:
    """Raises WrongSetting."""
    choice = server_choice(options)
    if options.all_namespaces and (options.names or choice.cluster.namespace):
        raise WrongSetting("--all-namespaces cannot be used together with NAME or --namespace")
    return finish(lambda: _run(options, choice))


def _run(options: argparse.Namespace, choice: ServerChoice) -> int:
    namespace = None if options.all_namespaces else current_namespace(choice.cluster)
    return show(anyio.run(diff_cluster, choice, namespace, options.names), options.output)


async def diff_cluster(choice: ServerChoice, namespace: str | None, names: Sequence[str] = ()) -> PlanReport:
    """Compares the PgRoles of a namespace (None: of all), or those with these names in it. Raises WrongSetting,
    PgRoleError, ApiError, Unreachable, NotConfigured.
    """
    async with open_cluster(choice.cluster) as client:
        view = await read_cluster(client, None if namespace is None else {namespace}, required=True)
        asked = frozenset(Key(namespace or "", name) for name in names) if names else None
        missing = sorted((asked or frozenset()) - view.roles.keys())
        notes = view.notes
        if namespace is not None and not (view.roles or names):
            notes += (f"namespace {namespace} has no PgRoles: name another with -n, or use --all-namespaces",)
        reports = [PlanReport(tuple(map(_missing, missing)), notes)]
        by_server: dict[str, list[Subject]] = {}
        left: dict[Key, str] = {}
        for key, obj in sorted(view.roles.items()):
            server = server_of(obj)
            if choice.server is not None and server != choice.server:
                left[key] = server
                continue
            found = _subject(key, obj, view)
            if isinstance(found, Subject):
                by_server.setdefault(server, []).append(found)
            elif asked is None or key in asked:
                reports.append(PlanReport((found,)))
        if choice.server is not None:
            reports.append(await _leave_out(client, left, asked, choice))
        by_server = {
            name: some for name, some in by_server.items() if asked is None or any(one.key in asked for one in some)
        }
        if choice.dsn is not None and choice.server is None:
            check_one_server(by_server)
        servers = [(await _find(client, name, choice), subjects) for name, subjects in by_server.items()]
        reports += await plan_servers(servers, asked)
    return join_reports(reports)


async def _leave_out(
    client: "Client", left: dict[Key, str], asked: frozenset[Key] | None, choice: ServerChoice
) -> PlanReport:
    """Reports the objects on other servers than --server, by their servers' names: those that were asked for fail.

    Raises Refused if there is no such PgServer, unless the DSN stands for it; ApiError, Unreachable.
    """
    await find_declared(client, choice.server or "", choice)
    if asked is None:
        return PlanReport((), left_out(len(left), choice))
    return PlanReport(tuple(_elsewhere(key, server, choice) for key, server in left.items() if key in asked))


def _elsewhere(key: Key, server: str, choice: ServerChoice) -> PlannedObject:
    error = Refused(Reason.INVALID_SPEC, f"it is on PgServer {server}, not on {choice.server}: leave out --server")
    return failed_object(key, error, server=server)


async def _find(client: "Client", name: str, choice: ServerChoice) -> ServerConfig:
    try:
        return await find_declared(client, name, choice)
    except (PgRoleError, ApiError, BadStream, Unreachable) as error:
        return unreachable_server(name, error)


def _subject(key: Key, obj: dict[str, Any], view: ClusterView) -> Subject | PlannedObject:
    try:
        pgrole = read_pgrole(obj)
    except Invalid as error:
        refused = Refused(Reason.INVALID_SPEC, str(error))
        return failed_object(key, refused, server=server_of(obj))
    namespace = view.namespaces[key.namespace]
    return Subject(
        key,
        pgrole,
        uid=str(mapping(obj.get("metadata")).get("uid") or ""),
        namespace_uid=namespace.uid,
        labels=namespace.labels,
        status=mapping(obj.get("status")),
        created=created_at(obj),
        cluster_read=True,
    )


def _missing(key: Key) -> PlannedObject:
    error = Refused(Reason.INVALID_SPEC, f"PgRole {key} does not exist")
    return failed_object(key, error)
