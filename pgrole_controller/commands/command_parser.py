"""Reads the command line of the commands that look at roles.

Imports nothing slow: `--help` and completion answer at once.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from pgrole_controller.api.validation import is_namespace_name, is_object_name, read_retention
from pgrole_controller.dsn import read_dsn
from pgrole_controller.program import show_examples
from pgrole_controller.settings import DSN, WrongSetting

_OWN_NAMESPACE = "pgrole-system"

_CONNECTION = (
    f"The server: the database that --dsn or {DSN.variable} names, or the PgServer that --server names, with the "
    f"Secret of its credentials, if you may read it. With both, the connection is that of the DSN, and the rest is the "
    f"PgServer's. Prefer {DSN.variable}: every user of a machine can read its command lines."
)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds plan, diff, approve, export, access, history and doctor to the program's commands."""
    _add_plan(commands)
    _add_diff(commands)
    _add_approve(commands)
    _add_export(commands)
    _add_access(commands)
    _add_history(commands)
    _add_doctor(commands)


def _add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "plan",
        _plan,
        "show what applying PgRole files would change",
        "Compares the PgRoles in FILEs with the live database and prints what the controller would do: the changes of "
        "each object and their SQL, or the rule that refuses it. Writes nothing. spec.serverRef decides which PgServer "
        "an object belongs to. With a DSN, no cluster is read, unless --kubeconfig, --context or --server names one. "
        "Without a DSN, a PgServer in FILEs must be in the cluster, too, with the same spec.connection. The exit code "
        "is 0 if nothing would change, 3 if something would, 1 if the command failed, 2 if it was misused.",
        "pgrole-controller plan -f roles/ --server main",
    )
    parser.add_argument(
        "-f",
        "--filename",
        dest="files",
        action="append",
        required=True,
        metavar="FILE",
        help="file or directory with PgRoles, and optionally PgServers; - reads standard input; can be repeated",
    )
    _add_output(parser, "text", "json", "sql")


def _add_diff(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "diff",
        _diff,
        "show where roles differ from their PgRoles in the cluster",
        "Compares PgRoles in the cluster with the live database and prints what differs now, above all drift that is "
        "only reported (drift.policy: Report). Exit codes are those of plan.",
        "pgrole-controller diff -n shop orders-app",
    )
    parser.add_argument("names", nargs="*", type=_object, metavar="NAME", help="PgRoles; default: all in the namespace")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="PgRoles in all namespaces")
    _add_output(parser, "text", "json", "sql")


def _add_approve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "approve",
        _approve,
        "correct the reported drift of a PgRole once",
        "Shows the drift that the controller reports for a PgRole with drift.policy: Report, asks, and lets the "
        "controller correct exactly this drift, once. The controller does not correct drift that arises afterwards. "
        "The exit code is 0 if the drift was corrected, 1 if it was not, 2 if the command was misused.",
        "pgrole-controller approve -n shop orders-app",
        connects=False,
    )
    parser.add_argument("name", type=_object, metavar="NAME", help="PgRole")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--wait",
        type=_period,
        default=_period("30s"),
        metavar="PERIOD",
        help="how long to wait for the controller (default: 30s)",
    )


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "export",
        _export,
        "print existing roles of a server as PgRoles",
        "Prints PgRoles that declare existing roles as they are, with adopt: true and without passwords. Applying them "
        "changes nothing, and their plan is empty.",
        "pgrole-controller export --roles 'shop_*' -n shop --output-dir roles/",
    )
    parser.add_argument(
        "--roles",
        metavar="PATTERN",
        action="append",
        help="only roles that match, with * and ? as wildcards; can be repeated",
    )
    parser.add_argument(
        "--database",
        metavar="NAME",
        action="append",
        help="privileges in these databases only; can be repeated; default: all",
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="write one file per role into DIR")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="list objects by name, so that no privilege extends to objects that are created later",
    )


def _add_access(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "access",
        _access,
        "show what a role may do and through what, or who may use an object",
        "Shows effective privileges and the path through which the role has each: granted directly, through "
        "memberships, to PUBLIC, as owner or as superuser.",
        "pgrole-controller access orders_app\npgrole-controller access --on app.orders --database orders",
        namespaced=False,
    )
    parser.add_argument("role", nargs="?", type=_name, metavar="ROLE", help="what this role may do, in all databases")
    parser.add_argument(
        "--on",
        metavar="SCHEMA.OBJECT",
        help="who may use this table, view, materialized view, foreign table, sequence, routine or schema",
    )
    parser.add_argument("--database", type=_name, metavar="NAME", help="this database only")
    _add_output(parser, "text", "json", "dot", "svg")


def _add_history(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "history",
        _history,
        "show drifts with their author",
        "Shows recorded drifts of roles and privileges: when, what differed, who caused it and how that is known, and "
        "whether it was corrected.",
        "pgrole-controller history orders_app --since 7d",
    )
    parser.add_argument("role", nargs="?", type=_name, metavar="ROLE", help="only drifts of this role")
    parser.add_argument(
        "--since", type=_period, default=_period("7d"), metavar="PERIOD", help="period, e.g. 12h or 7d (default: 7d)"
    )
    parser.add_argument(
        "--database",
        type=_name,
        metavar="NAME",
        help="drifts that this database recorded itself; default: the home database, which has all",
    )
    parser.add_argument(
        "--limit", type=_number, default=500, metavar="N", help="at most this many drifts, the latest (default: 500)"
    )
    _add_output(parser, "text", "json")


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _add(
        commands,
        "doctor",
        _doctor,
        "check the cluster and the servers, and name the command that fixes each finding",
        "Checks what the controller needs: permissions in the cluster, privileges in each server, schema pgrole, "
        "detection mode, clock, TLS, connection limits, event triggers, sources of attribution. Each finding names the "
        "command that fixes it. The exit code is 0 without problems, 1 with any, 2 if there is nothing to check or the "
        "command was misused.",
        "pgrole-controller doctor --server main",
    )
    parser.add_argument(
        "--login",
        type=_name,
        metavar="ROLE",
        help="the controller's role, if the command connects as another one (default: the login)",
    )
    _add_output(parser, "text", "json")


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    command: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
    example: str,  # one command per line, as `pgrole-controller COMMAND …`
    *,
    connects: bool = True,  # to a PostgreSQL server
    namespaced: bool = True,  # looks at PgRoles
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=show_examples(*example.splitlines()),
    )
    if connects:
        where = parser.add_argument_group("server and cluster", _CONNECTION)
        where.add_argument("--dsn", type=_dsn, metavar="DSN", help="postgresql://user:password@host:port/database")
        where.add_argument("--server", type=_name, metavar="NAME", help="PgServer")
    else:
        where = parser.add_argument_group("cluster")
    if namespaced:
        where.add_argument("-n", "--namespace", type=_namespace, metavar="NAME", help="namespace of the PgRoles")
    else:
        parser.set_defaults(namespace=None)
    where.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig file")
    where.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    if connects:
        where.add_argument(
            "--own-namespace",
            type=_namespace,
            default=_OWN_NAMESPACE,
            metavar="NAME",
            help=f"namespace of the controller and of PgServers' Secrets (default: {_OWN_NAMESPACE})",
        )
    parser.set_defaults(command=command)
    return parser


def _add_output(parser: argparse.ArgumentParser, *formats: str) -> None:
    parser.add_argument(
        "-o", "--output", choices=formats, default=formats[0], help=f"output format (default: {formats[0]})"
    )


def _dsn(value: str) -> str:
    try:
        return read_dsn(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _name(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def _namespace(value: str) -> str:
    if not is_namespace_name(value):
        raise argparse.ArgumentTypeError("must be the name of a namespace: lower-case letters, digits and -")
    return value


def _object(value: str) -> str:
    if not is_object_name(value):
        raise argparse.ArgumentTypeError("must be the name of a PgRole: lower-case letters, digits, - and .")
    return value


def _period(value: str) -> float:
    """Returns seconds."""
    try:
        seconds = read_retention(value).total_seconds()
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be a period such as 30s, 12h or 7d, above 0 and at most 9999d")
    return seconds


def _number(value: str) -> int:
    number = int(value) if re.fullmatch("[0-9]{1,4}", value) else 0
    if not 1 <= number <= 5_000:
        raise argparse.ArgumentTypeError("must be a number from 1 to 5000")
    return number


def _plan(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.plan_command import run

    return run(options)


def _diff(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.diff_command import run

    return run(options)


def _approve(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.approve import run

    return run(options)


def _export(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.export import run

    return run(options)


def _access(options: argparse.Namespace) -> int:
    if (options.role is None) == (options.on is None):
        raise WrongSetting("access takes either ROLE or --on SCHEMA.OBJECT")
    from pgrole_controller.commands.access import run

    return run(options)


def _history(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.history import run

    return run(options)


def _doctor(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.doctor import run

    return run(options)
