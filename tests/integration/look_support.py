"""Follows the remedies that `doctor` prints, as a user would."""

import os
from collections.abc import Sequence
from unittest.mock import patch

import asyncpg

from pgrole_controller.commands.doctor import examine
from pgrole_controller.core.findings.finding import Finding, FindingState, RemedyKind
from pgrole_controller.local.postgres import PostgresServer
from tests.commands import NO_CLUSTER, choose


async def examined(dsn: str, login: str | None = None) -> dict[str, list[Finding]]:
    """The findings on the server of a DSN, by check."""
    with patch.dict(os.environ, KUBECONFIG=NO_CLUSTER):
        return by_check(await examine(choose(dsn=dsn), login))


def by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    return {check: [one for one in findings if one.check == check] for check in {one.check for one in findings}}


def states(findings: Sequence[Finding]) -> set[FindingState]:
    return {finding.state for finding in findings}


async def follow(server: PostgresServer, findings: Sequence[Finding]) -> None:
    """Runs, as a superuser, every statement that the findings print, in its database."""
    for finding in findings:
        for remedy in finding.remedies:
            assert remedy.kind is RemedyKind.SQL, remedy
            connection = await asyncpg.connect(server.dsn(database=remedy.database or "postgres"))
            try:
                await connection.execute(remedy.command)
            finally:
                await connection.close()
