"""What the commands that look at roles are given: which server and which cluster."""

import argparse
import os
from dataclasses import dataclass

from pgrole_controller.settings import DSN, read_settings

#: Default of --own-namespace.
OWN_NAMESPACE = "pgrole-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """Where to find the PostgreSQL server and the cluster. `own_namespace`: where PgServers' Secrets are."""

    dsn: str | None
    server: str | None
    kubeconfig: str | None
    context: str | None
    namespace: str | None
    own_namespace: str


def server_choice(options: argparse.Namespace) -> ServerChoice:
    """Reads the choice from the arguments, and the DSN from the environment. Raises WrongSetting."""
    dsn = options.dsn or read_settings({}, os.environ, only=(DSN.name,)).dsn
    return ServerChoice(
        dsn=dsn,
        server=options.server,
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        own_namespace=options.own_namespace,
    )


def cluster_choice(options: argparse.Namespace) -> ServerChoice:
    """Reads the choice of a command that connects to no PostgreSQL server."""
    return ServerChoice(
        dsn=None,
        server=None,
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        own_namespace=OWN_NAMESPACE,
    )
