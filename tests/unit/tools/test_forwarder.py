"""A forward sends small parts at once, in both directions."""

from __future__ import annotations

import asyncio
import socket

import pytest

from devcluster import forwarder
from devcluster.forwarder import Forwarder


async def test_both_sockets_of_a_forward_send_small_parts_without_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "enter_network", lambda _: None)  # it needs root
    sockets: list[socket.socket] = []
    copy = forwarder._copy

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets.append(writer.get_extra_info("socket"))
        await copy(reader, writer)

    monkeypatch.setattr(forwarder, "_copy", noted)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2))
        writer.close()

    inside = await asyncio.start_server(answer, "127.0.0.1")
    port = inside.sockets[0].getsockname()[1]
    bound = forwarder.bound_socket()
    forward = await Forwarder(-1).add("127.0.0.1", port, bound)
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
    writer.write(b"ab")
    option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert await reader.readexactly(2) == b"ab"
    assert [each.getsockopt(*option) for each in sockets] == [1, 1]

    writer.close()
    forward.close()
    inside.close()
    bound.close()
