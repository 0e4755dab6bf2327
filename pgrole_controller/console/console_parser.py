"""Reads the command line of `console`. Imports nothing slow: `--help` and wrong arguments answer at once."""

import argparse
import os

from pgrole_controller.console.console_arguments import ConsoleArguments
from pgrole_controller.program import show_examples
from pgrole_controller.settings import read_strict_tls

PORT = 8383


def add_console(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `console`."""
    parser = commands.add_parser(
        "console",
        help="serve a read-only web console with roles, servers and drift",
        description=(
            "Serves a read-only web console with roles, servers, drift and who caused it, live. On a laptop it "
            "uses your kubeconfig and prints an address that opens one session. In a cluster (--auth token) it has no "
            "permissions of its own: it sends each viewer's own bearer token to the API server."
        ),
        epilog=show_examples("pgrole-controller console --open"),
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="PORT",
        help="port to listen on; 0 chooses a free one (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--auth",
        choices=("kubeconfig", "token"),
        help="kubeconfig: you alone, with your kubeconfig; token: each viewer logs in with a bearer token, or an "
        "authenticating proxy sends one (default: token in a pod without --kubeconfig and --context, otherwise "
        "kubeconfig)",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig file (default: KUBECONFIG, then ~/.kube/config)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    parser.add_argument(
        "-n",
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="namespace to show to a viewer who may not list PgRoles in all namespaces; can be repeated",
    )
    token = parser.add_argument_group("with --auth token")
    token.add_argument(
        "--hostname",
        action="append",
        default=[],
        metavar="NAME",
        help="name by which browsers reach the console, besides localhost; can be repeated",
    )
    token.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="CIDR",
        help="addresses from which a token in the headers Authorization or X-Forwarded-Access-Token is accepted; "
        "can be repeated",
    )
    token.add_argument("--api-server", metavar="URL", help="API server (default: the pod's, then the kubeconfig's)")
    token.add_argument("--certificate-authority", metavar="FILE", help="certificate authority of the API server")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: %(default)s"
    )
    parser.set_defaults(command=_console)


def read_arguments(options: argparse.Namespace) -> ConsoleArguments:
    """Raises WrongSetting."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and options.kubeconfig is None and options.context is None
    return ConsoleArguments(
        host=options.host,
        port=options.port,
        auth=options.auth or ("token" if in_pod else "kubeconfig"),
        open=options.open,
        hostnames=tuple(options.hostname),
        trusted_proxies=tuple(options.trusted_proxy),
        namespaces=tuple(options.namespace),
        kubeconfig=options.kubeconfig,
        context=options.context,
        api_server=options.api_server,
        certificate_authority=options.certificate_authority,
        log_level=options.log_level,
        strict_tls=read_strict_tls(os.environ),
    )


def _console(options: argparse.Namespace) -> int:
    arguments = read_arguments(options)
    from pgrole_controller.console.console_command import run_console

    return run_console(arguments)
