"""Ports of 127.0.0.1 that nobody uses."""

import random
import socket
from itertools import chain

#: Below those that the kernel gives to outgoing connections: what is picked here stays free until it is bound, and
#: while its server is stopped.
_RANGE = range(15_000, 32_000)


def free_port(wanted: int | None = None) -> int:
    """`wanted` when it is free, else a random one. Whoever binds it next has it: start the server soon."""
    others = random.sample(_RANGE, len(_RANGE))
    for port in chain([wanted] if wanted else [], others):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port of 127.0.0.1 is free")
