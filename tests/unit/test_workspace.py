"""local/workspace: a chosen port is still free when its server starts, however many processes choose ports."""

import socket
import sys

import pytest

from pgrole_controller.local.workspace import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reserves a port that a server can bind")


def test_a_chosen_port_is_not_given_to_another_socket() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_a_chosen_port_refuses_connections_until_its_server_listens() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0)
    with socket.create_server(("127.0.0.1", port)):
        socket.create_connection(("127.0.0.1", port), 5.0).close()


def test_a_preferred_port_is_chosen_unless_a_server_uses_it() -> None:
    port = free_port()
    assert free_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) != port


def test_all_chosen_ports_are_different() -> None:
    assert len({free_port() for _ in range(100)}) == 100
