"""Where the console listens, whom it admits and what it shows, checked."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pgrole_controller.api.validation import is_namespace_name
from pgrole_controller.ending import make_printable
from pgrole_controller.settings import WrongSetting

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
#: All addresses of this machine.
ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9._]{0,251}[A-Za-z0-9_])?\.?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleArguments:
    """`auth`: `kubeconfig` (one viewer, with the kubeconfig's user) or `token` (each viewer's own).

    `strict_tls`: as in `Client.connect`. Raises WrongSetting for arguments that contradict each other.
    """

    host: str
    port: int
    auth: str
    open: bool
    hostnames: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    namespaces: tuple[str, ...]
    kubeconfig: str | None
    context: str | None
    api_server: str | None
    certificate_authority: str | None
    log_level: str
    strict_tls: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise WrongSetting("--port must be 0 to 65535")
        for name in split_names(" ".join(self.namespaces)):
            if not is_namespace_name(name):
                raise WrongSetting(f"--namespace: {name[:64]!a} cannot be the name of a namespace")
        for name in self.hostnames:
            if not _is_host(name):
                raise WrongSetting(f"--hostname: {name[:64]!a} must be a name without a port, as pgrole.example.com")
        read_networks(self.trusted_proxies)
        if self.auth == "token":
            if self.open:
                raise WrongSetting("--open requires --auth kubeconfig")
            if self.api_server is not None and not _is_private(self.api_server):
                raise WrongSetting("--api-server must begin with https://: viewers' tokens are sent to it")
            if self.host not in LOOPBACK | ANY_HOST and not self.hostnames:
                raise WrongSetting(
                    f"--host {make_printable(self.host)} requires --hostname: the console answers browsers only under "
                    "names that it knows"
                )
            return
        if self.host not in LOOPBACK:
            raise WrongSetting(
                "--auth kubeconfig requires a loopback --host: everyone who reaches it sees what you may"
            )
        for flag, given in (
            ("--trusted-proxy", self.trusted_proxies),
            ("--hostname", self.hostnames),
            ("--api-server", self.api_server),
            ("--certificate-authority", self.certificate_authority),
        ):
            if given:
                raise WrongSetting(f"{flag} requires --auth token")

    def address(self, port: int) -> str:
        """Returns where a browser finds the console: a name that it knows, over HTTPS unless it is this machine."""
        if self.host not in LOOPBACK | ANY_HOST:
            return f"https://{_bracket(self.hostnames[0])}/"
        return f"http://{_bracket('localhost' if self.host in ANY_HOST else self.host)}:{port}/"


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises WrongSetting."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise WrongSetting(f"--trusted-proxy: {error}; write an address or a network, as 10.1.2.0/24") from error
    return tuple(found)


def split_names(text: str) -> list[str]:
    """Splits names that commas or white space separate."""
    return [name for name in re.split(r"[\s,]+", text) if name]


def _is_host(name: str) -> bool:
    """Whether the header Host can consist of it, apart from a port. IPv6 addresses are written without brackets."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _HOST.match(name) is not None
    return True


def _is_private(address: str) -> bool:
    """Whether a network cannot read what is sent there."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
        )
    except ValueError:
        return False
