"""The arguments of `claims`. Imports nothing that takes a while: `--help` and a wrong argument answer at once."""

import argparse
import os
from dataclasses import dataclass, fields
from typing import TypeVar

from pgrole_controller.settings import DSN, WrongSetting, read_settings

_SERVER = "the server whose claims they are, as postgresql://user:password@host:port/database"
_DATABASE = f"{DSN.variable} (environment only) names {_SERVER}: as that of its controller."
_RELEASE = (
    "Marks claims as released: their roles stay as they are, and can be taken back by an object of the same namespace "
    "and name, or be adopted by another one. An object that is still there takes its role back at once. With --forget, "
    "claims that are released already are deleted instead, so that nobody takes those roles back."
)
_TRANSFER = (
    "For a cluster that was built anew, or was given another --cluster-id: the objects of the same namespace and name "
    "there take the roles over, without spec.adopt. --from and --to may be the same id, for a cluster that was built "
    "anew under it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    """None: of any. `released`: only claims that no object holds any more."""

    cluster: str | None
    namespace: str | None
    role: str | None
    released: bool
    output: str  # table or json


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseArguments:
    """The claim of one role, all claims of a cluster, or all released ones. `yes`: without asking.

    Raises WrongSetting for arguments that do not go together.
    """

    role: str | None
    cluster: str | None
    all_released: bool
    namespace: str | None
    forget: bool
    yes: bool

    def __post_init__(self) -> None:
        if self.namespace and not self.cluster:
            raise WrongSetting("--namespace goes with --cluster")
        if self.all_released and not self.forget:
            raise WrongSetting("--all-released goes with --forget: what is released already cannot be released again")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferArguments:
    """From cluster `source` to cluster `target`. `yes`: without asking."""

    source: str
    target: str
    namespace: str | None
    with_released: bool
    yes: bool


Arguments = ListArguments | ReleaseArguments | TransferArguments
T = TypeVar("T", ListArguments, ReleaseArguments, TransferArguments)


def add_claims(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command, with its own three, to those of the program."""
    claims = commands.add_parser("claims", help="see, release and transfer what clusters claim", epilog=_DATABASE)
    deeds = claims.add_subparsers(required=True, metavar="DEED")

    listing = deeds.add_parser("list", help="which object owns which role", epilog=_DATABASE)
    for name, metavar in (("cluster", "ID"), ("namespace", "NS"), ("role", "NAME")):
        listing.add_argument(f"--{name}", type=_text, metavar=metavar, help=f"of this {name} only")
    listing.add_argument("--released", action="store_true", help="those only that nobody holds any more")
    listing.add_argument("--output", "-o", choices=("table", "json"), default="table", help="default: table")
    listing.set_defaults(command=_run, arguments=ListArguments)

    release = deeds.add_parser("release", help="give claims up", description=_RELEASE, epilog=_DATABASE)
    which = release.add_mutually_exclusive_group(required=True)
    which.add_argument("--role", type=_text, metavar="NAME", help="the claim of this role")
    which.add_argument("--cluster", type=_text, metavar="ID", help="all claims of this cluster")
    which.add_argument("--all-released", action="store_true", help="with --forget: all such claims, of any cluster")
    release.add_argument("--namespace", type=_text, metavar="NS", help="with --cluster: of this namespace only")
    release.add_argument("--forget", action="store_true", help="delete those that are released already")
    _add_yes(release)
    release.set_defaults(command=_run, arguments=ReleaseArguments)

    transfer = deeds.add_parser("transfer", help="hand claims over", description=_TRANSFER, epilog=_DATABASE)
    transfer.add_argument(
        "--from", dest="source", required=True, type=_text, metavar="ID", help="the cluster that has them"
    )
    transfer.add_argument("--to", dest="target", required=True, type=_text, metavar="ID", help="the one that gets them")
    transfer.add_argument("--namespace", type=_text, metavar="NS", help="of this namespace only")
    transfer.add_argument(
        "--with-released",
        action="store_true",
        help="what was released too goes to any namespace of the same name; otherwise it stays with the very namespace",
    )
    _add_yes(transfer)
    transfer.set_defaults(command=_run, arguments=TransferArguments)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _text(value: str) -> str:
    if not value or not value.isprintable():  # lone surrogates, of arguments that are no UTF-8, are not
        raise argparse.ArgumentTypeError("it takes a text that is not empty and can be printed")
    return value


def _run(options: argparse.Namespace) -> int:
    arguments = _typed(options.arguments, options)
    dsn = read_settings({}, os.environ, only=(DSN.name,)).dsn
    if dsn is None:
        raise WrongSetting(f"{DSN.variable} is not set: it names {_SERVER}")
    from pgrole_controller.claims.command import run

    return run(arguments, dsn)


def _typed(kind: type[T], options: argparse.Namespace) -> T:
    given = vars(options)
    return kind(**{one.name: given[one.name] for one in fields(kind)})
