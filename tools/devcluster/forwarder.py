"""Lets programs on the machine reach into a cluster: from a port on 127.0.0.1 to an address inside.

A socket belongs to the network namespace in which it was made, not to the process that uses it.
So the keeper listens on the machine, and for each connection steps into the cluster's namespace
just long enough to make the socket towards the inside.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable

from devcluster.linux import enter_network

_CHUNK_BYTES = 256 * 1024
_CONNECT_SECONDS = 10.0

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _tcp_socket() -> socket.socket:
    """A socket whose connections send small parts at once: asyncio sets TCP_NODELAY only where the protocol is named.

    Without that the second part of a request or an answer waits 40 ms for a delayed acknowledgement of the first.
    """
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


def bound_socket(port: int = 0) -> socket.socket:
    """A socket bound to a port of 127.0.0.1 (0: a free one), on which connecting is refused."""
    bound = _tcp_socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class Forward:
    """A port on the machine, and what accepts there.

    A socket that never listens keeps the port bound, so that no other process gets it
    while nothing accepts.
    """

    def __init__(self, bound: socket.socket, accept: Accept) -> None:
        self.port: int = bound.getsockname()[1]
        self._bound = bound
        self._accept = accept
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, sock=bound_socket(self.port), limit=_CHUNK_BYTES
            )

    def close(self) -> None:
        """Refuse connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None


class Forwarder:
    """All forwards into one network namespace."""

    def __init__(self, namespace: int) -> None:
        """Take over the descriptor of the cluster's network namespace."""
        self._inside = namespace
        self._outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._forwards: dict[tuple[str, int], Forward] = {}

    async def add(self, address: str, port: int, bound: socket.socket | None = None) -> Forward:
        """Forward to an address inside; asked for the same again, the same one is returned.

        Args:
            address: inside.
            port: inside.
            bound: holds the port to use; None for a free one.
        """
        target = (address, port)
        if target not in self._forwards:
            self._forwards[target] = Forward(
                bound or bound_socket(),
                lambda reader, writer: self._forward(reader, writer, target),
            )
            await self._forwards[target].open()
        return self._forwards[target]

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: tuple[str, int],
    ) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                inner_reader, inner_writer = await self._connect(target)
        except OSError:
            _reset(writer)
            return
        try:
            async with asyncio.TaskGroup() as both_ways:
                both_ways.create_task(_copy(reader, inner_writer))
                both_ways.create_task(_copy(inner_reader, writer))
        except* OSError:
            # A reset on one side is passed on as such: it is not the end of a complete answer.
            _reset(writer)
            _reset(inner_writer)
        finally:
            writer.close()
            inner_writer.close()

    async def _connect(
        self, target: tuple[str, int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = self._socket_inside()
        try:
            await asyncio.get_running_loop().sock_connect(connection, target)
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection, limit=_CHUNK_BYTES)

    def _socket_inside(self) -> socket.socket:
        enter_network(self._inside)
        try:
            connection = _tcp_socket()
        finally:
            enter_network(self._outside)
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        return connection


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side sees a reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
