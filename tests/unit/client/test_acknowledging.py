"""The first part of the API server's answer is acknowledged at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from rlfleet.sending import acknowledge


class Stream:
    """The part of httpcore's network stream that httpx hands on."""

    def __init__(self, connection: socket.socket | None) -> None:
        self._connection = connection

    def get_extra_info(self, info: str) -> object:
        return {"socket": self._connection}[info]


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        yield client


def test_an_answer_is_acknowledged_at_once_and_its_connection_stays_open(
    connection: socket.socket,
) -> None:
    option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    connection.setsockopt(*option, 0)
    assert connection.getsockopt(*option) == 0

    acknowledge(httpx.Response(200, extensions={"network_stream": Stream(connection)}))

    assert connection.getsockopt(*option) == 1
    assert connection.send(b"more") == 4


@pytest.mark.parametrize("extensions", [{}, {"network_stream": Stream(None)}])
def test_an_answer_without_a_socket_is_left_alone(extensions: dict[str, Stream]) -> None:
    acknowledge(httpx.Response(200, extensions=extensions))
