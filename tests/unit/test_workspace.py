"""local/workspace: a chosen port is still free when its server starts, however many processes choose ports."""

import socket
import sys

import pytest

from pgrole_controller.local.workspace import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there a port is kept that a server can bind")


def test_what_was_picked_is_not_given_to_another() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_nobody_answers_there_until_its_server_does() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0)
    with socket.create_server(("127.0.0.1", port)):
        socket.create_connection(("127.0.0.1", port), 5.0).close()


def test_the_one_that_is_wanted_is_given_while_no_server_has_it() -> None:
    port = free_port()
    assert free_port(port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) != port


def test_many_are_picked_and_no_two_alike() -> None:
    assert len({free_port() for _ in range(100)}) == 100
