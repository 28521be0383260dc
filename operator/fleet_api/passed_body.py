"""The body of a request that is passed on, part by part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter
from aiohttp.payload import Payload

from fleet_api.bodies import ComingBody
from fleet_api.connections import WRITTEN_BYTES
from fleet_api.limits import Slot
from fleet_api.problems import Problem, too_large
from fleet_api.whole_body import held_back

UNREAD_SECONDS = 60.0
"""A worker reads bodies also while it holds requests, so one that takes no part for this time hangs. A client that
leaves meanwhile is not seen.
"""


class PassedBody(Payload):
    """The body of a request, up to a limit. It keeps the parts while there is memory for them.

    Args:
        memory: Holds the bytes of kept parts.
        may_need: Returns whether a body may have to be sent again. Otherwise it is kept only until its end.

    Fields:
        fault: why the client's body could not be sent on.
    """

    _autoclose = True

    def __init__(
        self,
        request: web.Request,
        max_bytes: int,
        *,
        memory: Slot,
        may_need: Callable[[bytearray], bool],
    ) -> None:
        super().__init__(request)
        self._request = request
        self._max_bytes = max_bytes
        self._memory = memory
        self._may_need = may_need
        self._kept: bytearray | None = bytearray()
        self._is_whole = not request.body_exists
        self.fault: Exception | None = None
        length = request.content_length
        if length is not None and length > max_bytes:
            raise too_large(max_bytes)
        self._coming = ComingBody(request, max_bytes if length is None else length)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """See `Payload`. aiohttp needs no text of it."""
        raise NotImplementedError

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the parts as they come, decompressed. A part that the worker does not read holds back the next one.

        Errors: Problem after the limit, or for a body that comes too slowly. TimeoutError if the worker takes none. Those of the
            connections.
        """
        self._consumed = True
        own = cast("StreamWriter", writer)
        transport = own.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=WRITTEN_BYTES)
        size = 0
        try:
            while part := await self._coming.next():
                size += len(part)
                if size > self._max_bytes:
                    raise too_large(self._max_bytes)
                self._keep(part)
                await own.write(part, drain=False)
                if transport is not None and transport.get_write_buffer_size() > WRITTEN_BYTES:
                    async with asyncio.timeout(UNREAD_SECONDS):
                        with held_back(self._request):
                            await own.drain()
        except (Problem, web.RequestPayloadError) as error:
            self.fault = error
            raise
        self._is_whole = True
        if self._kept is not None and not self._may_need(self._kept):
            self.forget()

    @property
    def again(self) -> bytes | None:
        """The whole body once more; None if it was not kept, or has not been read to its end."""
        return bytes(self._kept) if self._is_whole and self._kept is not None else None

    def forget(self) -> None:
        """Drop the parts, and keep no more."""
        self._memory.release()
        self._kept = None

    def _keep(self, part: bytes) -> None:
        if self._kept is None:
            return
        if self._memory.add(len(part)):
            self._kept += part
        else:
            self.forget()
