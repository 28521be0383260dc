"""A protocol between a connection and that of aiohttp, for listeners that bound what a connection may cost."""

from __future__ import annotations

import asyncio
from typing import cast


class Passing(asyncio.Protocol):
    """Passes everything on. `inner`: the protocol of aiohttp."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """End the connection at once. The client loses the rest."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.inner.resume_writing()
