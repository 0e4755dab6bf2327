"""The command `doctor`: checks the cluster and the servers, and prints findings with the commands that fix them."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgrole_controller.commands.doctor_cluster import ClusterChecks
from pgrole_controller.commands.doctor_server import check_server
from pgrole_controller.commands.output import finish, make_console, render_document, spell_error, write_document
from pgrole_controller.commands.server_reading import (
    SERVERS_AT_ONCE,
    ServerChoice,
    at_dsn,
    of_dsn,
    open_cluster,
    read_each,
    read_server,
    server_choice,
)
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.ddl import spell_printably
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.findings.cluster_findings import CLUSTER, not_checked
from pgrole_controller.core.findings.finding import Finding, FindingState, RemedyKind, describe, has_problem, summarize
from pgrole_controller.ending import DONE, FAILED, make_printable
from pgrole_controller.kube.errors import KubeError, NotConfigured, WrongKubeconfig
from pgrole_controller.program import spell_commands
from pgrole_controller.settings import WrongSetting, read_settings

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

_SIGNS = {FindingState.OK: "✓", FindingState.WARNING: "!", FindingState.PROBLEM: "✗", FindingState.UNKNOWN: "?"}
_STYLES = {
    FindingState.OK: "green",
    FindingState.WARNING: "yellow",
    FindingState.PROBLEM: "bold red",
    FindingState.UNKNOWN: "cyan",
}
_ORDER = (FindingState.PROBLEM, FindingState.WARNING, FindingState.UNKNOWN, FindingState.OK)


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 1 for any problem. Raises WrongSetting if there is nothing to check."""
    choice = server_choice(options)
    return finish(lambda: _show([*map(_spell, anyio.run(examine, choice, options.login))], options.output))


def _spell(finding: Finding) -> Finding:
    """Spells the commands in a finding as this user types them."""
    remedies = tuple(
        replace(one, command=spell_commands(one.command)) if one.kind is RemedyKind.SHELL else one
        for one in finding.remedies
    )
    return replace(finding, text=spell_commands(finding.text), remedies=remedies)


async def examine(choice: ServerChoice, login: str | None) -> list[Finding]:
    """The findings, by area. Raises WrongSetting if neither a cluster nor a server is configured, and WrongKubeconfig
    if --kubeconfig or --context is wrong.
    """
    cluster = read_settings({}, os.environ, only=("cluster_id",)).cluster_id
    databases: Mapping[str, tuple[str, ...]] = {}
    try:
        async with open_cluster(choice.cluster) as client:
            checks = ClusterChecks(client, choice, cluster)
            findings = await checks.run()
            servers, unread = await _find_servers(client, choice, checks.servers)
        findings, cluster = [*findings, *unread], checks.cluster
        if choice.dsn is None or choice.server:
            databases = checks.databases
    except NotConfigured as error:
        if choice.cluster.named and isinstance(error, WrongKubeconfig):
            raise
        if choice.dsn is None:
            raise WrongSetting(
                f"nothing to check: name a server with PGROLE_DSN, or a cluster with --kubeconfig ({error})"
            ) from error
        findings = [not_checked("API server", f"{error}. To check it, use --kubeconfig")]
        servers = [of_dsn(choice.dsn)]
    by_server = await read_each(
        servers, lambda one: check_server(one, login, databases.get(one.name), cluster), SERVERS_AT_ONCE
    )
    findings += chain.from_iterable(by_server)
    if not servers:
        why = "no PgServer was found, and PGROLE_DSN is not set. To check one, set PGROLE_DSN"
        findings.append(not_checked("connection", why, area="server"))
    return findings


async def _find_servers(
    client: "Client", choice: ServerChoice, names: Sequence[str]
) -> tuple[list[ServerConfig], list[Finding]]:
    """Returns the chosen server; else that of the DSN; else every PgServer. One that cannot be read is a finding."""
    if choice.server is None and choice.dsn is not None:
        return [of_dsn(choice.dsn)], []
    found: list[ServerConfig] = []
    unread: list[Finding] = []
    for name in names:
        try:
            found.append(await read_server(client, name, choice.own_namespace))
        except (PgRoleError, KubeError) as error:
            unread.append(not_checked(f"PgServer {name}", spell_error(error)))
    if choice.dsn is not None:
        found = [at_dsn(found[0], choice.dsn) if found else of_dsn(choice.dsn)]
    return found, unread


def _show(findings: Sequence[Finding], output: str) -> int:
    if output == "json":
        write_document(as_json(findings))
    else:
        print_findings(make_console(), findings)
    return FAILED if has_problem(findings) else DONE


def as_json(findings: Sequence[Finding]) -> str:
    """Returns the form that docs/doctor.md documents."""
    shape = {"summary": summarize(findings), "findings": [describe(finding) for finding in findings]}
    return render_document(shape)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Prints by area, the cluster first; within an area problems first."""
    areas = sorted(findings, key=lambda finding: (finding.area != CLUSTER, finding.area))
    for area, group in groupby(areas, key=lambda finding: finding.area):
        console.print(Text(make_printable(area).upper(), style="bold"))
        for finding in sorted(group, key=lambda finding: _ORDER.index(finding.state)):
            _print_finding(console, finding)
        console.print()
    console.print(Text(summarize(findings), style="bold"))


def _print_finding(console: Console, finding: Finding) -> None:
    text = Text.assemble((f"{make_printable(finding.check)}: ", "bold"), make_printable(finding.text))
    grid = Table.grid(padding=(0, 1))  # wrapped lines are indented
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {_SIGNS[finding.state]} {finding.state.value:<8}", style=_STYLES[finding.state]), text)
    console.print(grid)
    for remedy in finding.remedies:
        where = f"  (in database {make_printable(remedy.database)})" if remedy.database else ""
        command = spell_printably(remedy.command) if remedy.kind is RemedyKind.SQL else remedy.command
        line = f"      {remedy.kind.value}> {make_printable(command)}{where}"
        console.print(Text(line, style="dim"), soft_wrap=True)
