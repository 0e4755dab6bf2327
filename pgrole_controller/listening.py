"""Listens on an address of this machine, for the health port and for the console."""

import errno
import socket
from typing import Final

#: Every address of this machine, IPv4 and IPv6.
EVERY_ADDRESS: Final = "::"

_EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104 -- every address that there is without IPv6
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Listens on an address, or on the first address of a name; EVERY_ADDRESS works without IPv6, too.

    `backlog`: connections that may wait to be accepted; None: Python's default. Raises OSError, UnicodeError.
    """
    if host == EVERY_ADDRESS:
        try:
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        except ValueError:  # no socket of this machine takes both
            host = _EVERY_IPV4
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            host = _EVERY_IPV4
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=backlog)
