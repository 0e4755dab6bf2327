"""Reads the command line of `claims`. Imports nothing slow: `--help` and wrong arguments answer at once."""

import argparse
import os
from dataclasses import fields
from typing import TypeVar

from pgrole_controller.claims.arguments import ListArguments, ReleaseArguments, TransferArguments
from pgrole_controller.program import show_examples
from pgrole_controller.settings import DSN, WrongSetting, read_settings

_SERVER = "the server with the claims, as postgresql://user:password@host:port/database"
_DATABASE = (
    f"{DSN.variable} (environment variable) names {_SERVER}. Name the home database (spec.connection.database of the "
    "PgServer), with a login that has the controller's privileges."
)
_CLAIMS = "A claim is a row in the database that says which object of which cluster owns a role."
_LIST = "Lists claims. DRIFTS and LAST DRIFT are those of the role itself, without those of its privileges."
_RELEASE = (
    "Marks claims as released. The roles do not change. An object with the same namespace and name can take a role "
    "back, and another object can adopt it. An object that still exists takes its role back at once. With --forget, "
    "deletes claims that are already released, so that no object takes those roles back, except one that still exists "
    "and whose status says that it has the role."
)
_TRANSFER = (
    "Transfers claims to a cluster that was rebuilt or has a new --cluster-id. The objects with the same namespace and "
    "name in that cluster take over the roles, without spec.adopt. --from and --to can be the same id, for a cluster "
    "that was rebuilt with the same id."
)


T = TypeVar("T", ListArguments, ReleaseArguments, TransferArguments)


def add_claims(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its three subcommands to the program's."""
    claims = commands.add_parser(
        "claims",
        help="list, release and transfer claims on roles",
        description=_CLAIMS,
        epilog=_epilog("pgrole-controller claims list", "pgrole-controller claims release --role old_reports"),
    )
    actions = claims.add_subparsers(required=True, metavar="ACTION")

    listing = actions.add_parser(
        "list",
        help="list claims: which object owns which role",
        description=_LIST,
        epilog=_epilog("pgrole-controller claims list -n shop -o json"),
    )
    listing.add_argument("--cluster", type=_text, metavar="ID", help="only claims of this cluster")
    _add_namespace(listing, "only claims of this namespace")
    listing.add_argument("--role", type=_text, metavar="NAME", help="only the claim of this role")
    listing.add_argument("--released", action="store_true", help="only released claims")
    listing.add_argument(
        "-o",
        "--output",
        type=_form,
        choices=("text", "json"),
        default="text",
        help="output format (default: text)",
    )
    listing.set_defaults(command=_run, arguments=ListArguments)

    release = actions.add_parser(
        "release",
        help="release claims",
        description=_RELEASE,
        epilog=_epilog("pgrole-controller claims release --cluster c3f1a9 -n shop"),
    )
    which = release.add_mutually_exclusive_group(required=True)
    which.add_argument("--role", type=_text, metavar="NAME", help="the claim of this role")
    which.add_argument("--cluster", type=_text, metavar="ID", help="all claims of this cluster")
    which.add_argument("--all-released", action="store_true", help="with --forget: all released claims, of any cluster")
    _add_namespace(release, "with --cluster: only claims of this namespace")
    release.add_argument("--forget", action="store_true", help="delete claims that are already released")
    _add_yes(release)
    release.set_defaults(command=_run, arguments=ReleaseArguments)

    transfer = actions.add_parser(
        "transfer",
        help="transfer claims to another cluster",
        description=_TRANSFER,
        epilog=_epilog("pgrole-controller claims transfer --from c3f1a9 --to 8be017"),
    )
    transfer.add_argument(
        "--from", dest="source", required=True, type=_text, metavar="ID", help="cluster that has the claims"
    )
    transfer.add_argument(
        "--to", dest="target", required=True, type=_text, metavar="ID", help="cluster that receives the claims"
    )
    _add_namespace(transfer, "only claims of this namespace")
    transfer.add_argument(
        "--with-released",
        action="store_true",
        help="transfer released claims to any namespace of the same name; by default they keep their namespace uid",
    )
    _add_yes(transfer)
    transfer.set_defaults(command=_run, arguments=TransferArguments)


def _epilog(*examples: str) -> str:
    return f"{_DATABASE}\n\n{show_examples(*examples)}"


def _add_namespace(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("-n", "--namespace", type=_text, metavar="NAME", help=meaning)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _text(value: str) -> str:
    if not value or not value.isprintable():  # also rejects lone surrogates, from arguments that are not UTF-8
        raise argparse.ArgumentTypeError("it must be a non-empty, printable text")
    return value


def _form(value: str) -> str:
    return "text" if value == "table" else value  # its name in 0.2.0


def _run(options: argparse.Namespace) -> int:
    arguments = _typed(options.arguments, options)
    dsn = read_settings({}, os.environ, only=(DSN.name,)).dsn
    if dsn is None:
        raise WrongSetting(f"{DSN.variable} is not set: set it to {_SERVER}")
    from pgrole_controller.claims.command import run

    return run(arguments, dsn)


def _typed(kind: type[T], options: argparse.Namespace) -> T:
    given = vars(options)
    return kind(**{one.name: given[one.name] for one in fields(kind)})
