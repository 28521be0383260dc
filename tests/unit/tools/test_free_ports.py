"""A free port is free at every address, since servers may listen on all of them."""

from __future__ import annotations

import socket

import pytest

from free_ports import free_port


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_the_kernel_gives_a_kept_port_to_no_connection_at_any_address(address: str) -> None:
    port = free_port()
    with socket.socket() as client, pytest.raises(OSError, match="in use"):
        client.bind((address, port))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_server_listens_on_a_kept_port(address: str) -> None:
    port = free_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen()
