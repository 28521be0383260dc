"""The body of a request that is passed on, part by part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from aiohttp import web

from fleet_api.bodies import in_time
from fleet_api.problems import Problem


class Room:
    """Bytes of bodies that are kept at once, in case that they must be sent again."""

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes

    def take(self, size_bytes: int) -> bool:
        """Take room. Returns: whether there was so much."""
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Make room."""
        self._left_bytes += size_bytes


class PassedBody:
    """The body of a request, up to a limit. It keeps the parts as long as there is room.

    Args:
        may_need: Whether this content may have to be sent again. Otherwise it is kept until its end only.

    Fields:
        fault: why the client's body could not be sent on.
    """

    def __init__(
        self,
        request: web.Request,
        most_bytes: int,
        *,
        room: Room,
        may_need: Callable[[bytearray], bool],
    ) -> None:
        self._request = request
        self._most_bytes = most_bytes
        self._room = room
        self._may_need = may_need
        self._kept: bytearray | None = bytearray()
        self._is_whole = not request.body_exists
        self.fault: Exception | None = None
        if (request.content_length or 0) > most_bytes:
            raise self._too_long()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts as they come, decompressed. Ends with an error after the limit, or without a next part."""
        size = 0
        try:
            while part := await self._next():
                size += len(part)
                if size > self._most_bytes:
                    raise self._too_long()
                self._keep(part)
                yield part
        except (Problem, web.RequestPayloadError) as error:
            self.fault = error
            raise
        self._is_whole = True
        if self._kept is not None and not self._may_need(self._kept):
            self.forget()

    async def _next(self) -> bytes:
        """The next part; empty at the end. How long the worker takes for it does not count."""
        async with in_time():
            return await self._request.content.readany()

    @property
    def again(self) -> bytes | None:
        """The whole body once more; None if it was not kept, or has not been read to its end."""
        return bytes(self._kept) if self._is_whole and self._kept is not None else None

    def forget(self) -> None:
        """Keep nothing any more."""
        if self._kept is not None:
            self._room.give_back(len(self._kept))
        self._kept = None

    def _keep(self, part: bytes) -> None:
        if self._kept is None:
            return
        if self._room.take(len(part)):
            self._kept += part
        else:
            self.forget()

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "RequestEntityTooLarge",
            f"the body has more than {self._most_bytes} bytes; send a smaller one",
        )
