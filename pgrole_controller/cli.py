"""Entry points `pgrole-controller`, `kubectl-pgrole` and `kubectl_complete-pgrole`.

Exit codes: 0 done, or asked to stop (`run` and `dev`); 1 failed, 2 wrong usage, 130 interrupted, 141 output not read.
Each command imports what it needs.
"""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pgrole_controller import __version__
from pgrole_controller.imports import startup_imports

with startup_imports():
    from pgrole_controller.dsn import address_of
    from pgrole_controller.ending import DONE, FAILED, INTERRUPTED, MISUSED, end, leaves, print_error
    from pgrole_controller.program import PLUGIN, CommandParser, program_name, show_examples
    from pgrole_controller.settings import (
        DSN,
        SETTINGS,
        Group,
        Setting,
        Settings,
        WrongSetting,
        read_settings,
    )

if TYPE_CHECKING:
    from pgrole_controller.controller.app import Config

log = logging.getLogger(__name__)

_CREATE = "CREATE SCHEMA IF NOT EXISTS pgrole;"
#: An update finds most parts in place, and PostgreSQL would announce each.
_QUIET = "SET client_min_messages = warning;"


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(end(lambda: _main(arguments)))


def _main(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    completing = "_ARGCOMPLETE" in os.environ
    parser = make_parser(only_run=given[:1] == ["run"] and not completing)
    if completing:
        from pgrole_controller.commands.completion import answer_shell

        answer_shell(parser)
    if given[:1] == ["__complete"]:
        return _answer_kubectl(parser, given[1:])
    options = parser.parse_args(given)
    try:
        code: int = options.command(options)
    except WrongSetting as error:
        print_error(str(error))
        return MISUSED
    except KeyboardInterrupt:
        return DONE if options.command in (_run, _dev) else INTERRUPTED
    return code


def complete_for_kubectl() -> None:
    """Entry point `kubectl_complete-pgrole`, which kubectl runs with the words after `kubectl pgrole`."""
    sys.exit(end(lambda: _answer_kubectl(make_parser(), sys.argv[1:])))


def make_parser(*, only_run: bool = False) -> argparse.ArgumentParser:
    """The parser for the name under which the program was called: as a plugin of kubectl, without `run` and `dev`.

    `only_run`: without the other commands, whose arguments a controller would keep in memory.
    """
    program = program_name()
    parser: argparse.ArgumentParser = CommandParser(
        prog=program,
        description="PostgreSQL roles as Kubernetes objects.",
        epilog=f"`{program} COMMAND --help` describes a command and gives examples.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    if program != PLUGIN:
        _add_run(commands)
        if only_run:
            return parser
        _add_dev(commands)
    _add_others(commands)
    return parser


def _add_others(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the commands that the plugin has, too."""
    from pgrole_controller.claims.parser import add_claims
    from pgrole_controller.commands.command_parser import add_commands
    from pgrole_controller.console.console_parser import add_console

    _add_crds(commands)
    _add_sql(commands)
    add_claims(commands)
    add_commands(commands)
    add_console(commands)
    _add_completion(commands)


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="run the controller",
        description="Keeps PostgreSQL roles as the PgRoles in the cluster declare them, until it is asked to stop "
        "(SIGTERM, Ctrl-C). Each setting is also an environment variable; the flag wins.",
        epilog=f"{DSN.variable} (environment only): {DSN.help}\n\n"
        + show_examples("pgrole-controller run --log-level debug --log-format text"),
    )
    for group in Group:
        heading = run.add_argument_group(group)
        for setting in SETTINGS:
            if setting.group is group and setting.flag is not None:
                _add_flag(heading, setting, setting.flag)
    run.set_defaults(command=_run)


def _add_dev(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    dev = commands.add_parser(
        "dev",
        help="run everything on this machine: API server, PostgreSQL, controller, samples",
        description="Runs a real API server, a real PostgreSQL and the controller on this machine, applies the samples "
        "and prints commands to try. Ctrl-C stops everything.",
        epilog=show_examples("pgrole-controller dev --state .dev"),
    )
    dev.add_argument("--state", type=Path, metavar="DIR", help="keep the state of both servers in DIR between runs")
    dev.add_argument("--postgres", type=int, metavar="VERSION", help="PostgreSQL 14 to 18 (default: the newest)")
    dev.add_argument("--console", action="store_true", help="serve the web console, too")
    dev.set_defaults(command=_dev)


def _add_crds(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    crds = commands.add_parser(
        "crds",
        help="print the CustomResourceDefinitions",
        description="Prints the CustomResourceDefinitions of PgRole and PgServer for this version of the controller.",
        epilog=show_examples("pgrole-controller crds | kubectl apply --server-side -f -"),
    )
    where = crds.add_mutually_exclusive_group()
    where.add_argument("--write", type=Path, metavar="DIR", help="write them to files in DIR")
    where.add_argument("--check", type=Path, metavar="DIR", help="exit with an error if the files in DIR differ")
    crds.set_defaults(command=_crds)


def _add_sql(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sql = commands.add_parser(
        "sql",
        help="print the SQL that installs schema pgrole, for an administrator to run",
        description="Prints the SQL that installs or updates schema pgrole in the home database. You need it only if "
        "the controller may not install the schema itself.",
        epilog=show_examples(
            'pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"',
            'pgrole-controller sql --database | psql -v ON_ERROR_STOP=1 "${ADMIN_DSN%/*}/orders"',
        ),
    )
    part = sql.add_mutually_exclusive_group()
    part.add_argument(
        "--database",
        action="store_true",
        help="print the SQL for a database with managed privileges, other than the home database",
    )
    part.add_argument("--remove", action="store_true", help="print the SQL that removes all of it from a database")
    sql.set_defaults(command=_sql)


def _add_completion(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    completion = commands.add_parser(
        "completion",
        help="print the script that completes commands in a shell, or in kubectl",
        description="Prints the script that a shell reads at its start. For kubectl 1.26 and later, prints the program "
        "kubectl_complete-pgrole: save it in a folder of your PATH and make it executable, and kubectl's own script "
        "completes `kubectl pgrole`. An installation by pip has that program already.",
        epilog=show_examples(
            "source <(pgrole-controller completion bash)",
            "pgrole-controller completion fish | source",
            "pgrole-controller completion kubectl > ~/.local/bin/kubectl_complete-pgrole",
        ),
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish", "kubectl"), metavar="SHELL", help="bash, zsh, fish or kubectl"
    )
    completion.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.completion import print_script

    return print_script(options.shell, plugin=program_name() == PLUGIN)


def _answer_kubectl(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    from pgrole_controller.commands.completion import answer_kubectl

    return answer_kubectl(parser, words)


def _add_flag(group: "argparse._ArgumentGroup", setting: Setting, flag: str) -> None:
    default = setting.default or setting.otherwise
    shown = f"; default: {default}" if default else ""
    text = f"{setting.help} ({setting.variable}{shown})"
    group.add_argument(flag, dest=setting.name, metavar=setting.metavar, help=text)


def _run(options: argparse.Namespace) -> int:
    settings = read_settings(vars(options), os.environ)
    # Imported late because it is slow: `--help` and wrong settings answer at once.
    with startup_imports():
        import anyio

        from pgrole_controller.controller.app import run
        from pgrole_controller.controller.containment import CannotStart, Misconfigured
        from pgrole_controller.controller.watchdog import watched_loop
        from pgrole_controller.logs import set_up

    set_up(settings.log_level, settings.log_format)
    code = DONE
    try:
        anyio.run(run, config_of(settings), backend_options={"loop_factory": watched_loop})
    except* CannotStart as group:
        for error in leaves(group):
            print_error(str(error))
        code = MISUSED if isinstance(next(leaves(group)), Misconfigured) else FAILED
    except* Exception:
        log.exception("exiting: unexpected error")
        code = FAILED
    return code


def config_of(settings: Settings) -> "Config":
    from pgrole_controller.controller.app import Config, ElectionConfig
    from pgrole_controller.controller.declaration import ControllerConfig
    from pgrole_controller.controller.server_config import DEFAULT_SERVER, ServerConfig
    from pgrole_controller.core.policy import allow_ordinary_roles
    from pgrole_controller.core.server_options import TEMPLATES, DatabasesConfig
    from pgrole_controller.kube.contexts import in_cluster_namespace
    from pgrole_controller.postgres.connection import Endpoint
    from pgrole_controller.postgres.token import TokenCommand

    in_cluster, server = in_cluster_namespace(), None
    if (dsn := settings.dsn) is not None:
        server = ServerConfig(
            DEFAULT_SERVER,
            Endpoint.of_dsn(dsn),
            allow_ordinary_roles(settings.allow, settings.protected, settings.forbidden_metadata),
            address_of(dsn),
            may_install=settings.install,
            mode=settings.detection,
            interval=settings.poll_interval,
            resync_seconds=settings.resync_interval,
            databases=DatabasesConfig(("*",), TEMPLATES, detection=settings.databases_detection),
        )
    elects = in_cluster is not None if settings.leader_election is None else settings.leader_election
    return Config(
        server=server,
        controller_config=ControllerConfig(
            namespace=settings.own_namespace or in_cluster or "default",
            forbidden_metadata=settings.forbidden_metadata,
            token_command=TokenCommand(settings.token_command) if settings.token_command else None,
        ),
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        strict_tls=settings.strict_tls,
        cluster=settings.cluster_id,
        namespace=settings.namespace,
        election=ElectionConfig(settings.lease, settings.identity or socket.gethostname()) if elects else None,
        health_host=settings.health_host,
        health_port=settings.health_port,
    )


def _dev(options: argparse.Namespace) -> int:
    import anyio

    try:
        from pgrole_controller.local.dev import run_dev
    except ModuleNotFoundError as error:
        raise WrongSetting(f"dev needs the extra `local` (pip install 'pgrole-controller[local]'): {error}") from error
    return anyio.run(partial(run_dev, options.state, version=options.postgres, console=options.console))


def _crds(options: argparse.Namespace) -> int:
    from pgrole_controller.api import crd
    from pgrole_controller.commands.output import write_document

    files = crd.files()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (options.write / name).write_text(text, encoding="utf-8")
    elif options.check:
        stale = [name for name, text in files.items() if _read(options.check / name) != text]
        if stale:
            remedy = f"run `{program_name()} crds --write {quote(str(options.check))}`"
            print_error(f"not of this version: {', '.join(stale)}: {remedy}")
            return FAILED
    else:
        write_document("---\n".join(files.values()))
    return DONE


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _sql(options: argparse.Namespace) -> int:
    from pgrole_controller.commands.output import write_document
    from pgrole_controller.postgres import queries

    if options.remove:
        parts = ["BEGIN;", queries.remove(), "COMMIT;"]
    elif options.database:
        # The event triggers after the rest, which can be used if they are not permitted.
        parts = ["BEGIN;", _CREATE, queries.install_database(), "COMMIT;\n", queries.install_event_triggers()]
    else:
        parts = ["BEGIN;", _CREATE, queries.install(), "COMMIT;"]
    write_document("\n".join((*queries.SCRIPT_SETTINGS, _QUIET, *parts, "")))
    return DONE
