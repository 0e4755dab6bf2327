"""Ports of 127.0.0.1 that nobody uses."""

import socket


def free_port(wanted: int | None = None) -> int:
    """`wanted` when it is free, else one that the kernel picks. Whoever binds it next has it: start the server soon."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted or 0))
        except OSError:
            return free_port()
        return int(listener.getsockname()[1])
