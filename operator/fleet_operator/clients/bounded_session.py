"""The HTTP session of kopf, which reads lists and watches in bounded memory.

kopf reads a list or an event whole, and holds the objects of about a second at once. A tenant's object of
1.2 MB takes 28 MiB as Python objects. So kopf gets each object with its names and as a text, which `opened`
parses when its turn has come. A large object is reduced before that (`bounded_json`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from ssl import SSLContext
from typing import Any

import aiohttp

from fleet_operator.clients.bounded_json import BoundedReader, read_closed
from fleet_operator.clients.changes_in_turn import ChangesInTurn
from fleet_operator.errors import TooLarge


class _Lines:
    """The content of a watch, with one closed event in each chunk, in turns by namespace."""

    def __init__(
        self, content: aiohttp.StreamReader, reader: BoundedReader, changes: ChangesInTurn
    ) -> None:
        self._content = content
        self._reader = reader
        self._changes = changes

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Yield the events as lines. Errors: those of `BoundedReader.lines`."""
        reading = asyncio.create_task(self._read())
        try:
            while (event := await self._changes.next(reading)) is not None:
                kind, found = event
                yield json.dumps({"type": kind, "object": found}).encode() + b"\n"
            await reading
        finally:
            reading.cancel()

    async def _read(self) -> None:
        async for event in self._reader.lines(self._content):
            self._changes.put(event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def bounded_session(
    tls: SSLContext,
    headers: Mapping[str, str],
    proxy: str | None,
    on_large: Callable[[], bool],
    changes: Mapping[str, ChangesInTurn],
) -> aiohttp.ClientSession:
    """A session for `kopf.AiohttpSession`.

    `on_large`: called for a page that is too large. Returns: whether the next list is in smaller pages. Then
    kopf lists again, as after a lost connection. `changes`: by path of the watch, for this session and later ones.
    """
    reader = BoundedReader(read_closed)

    class BoundedResponse(aiohttp.ClientResponse):
        """Reads one body, or one watch."""

        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if self.status < 400 and "watch" in self.url.query:
                waiting = changes[self.url.path]
                waiting.begin(self.url.query.get("resourceVersion", ""))
                lines = _Lines(self.content, reader, waiting)
                self.content = lines  # type: ignore[assignment]  # it passes the rest on
            return self

        async def json(self, **how: Any) -> Any:
            if self.status >= 400:
                # kopf expects that a busy server, or a proxy, refuses in plain text. No tenant wrote it.
                return await super().json(**how)
            try:
                return await reader.object(self.content)
            except TooLarge as error:
                if on_large():
                    raise aiohttp.ClientPayloadError(str(error)) from error
                raise

    connector = aiohttp.TCPConnector(limit=0, ssl=tls)
    return aiohttp.ClientSession(
        connector=connector, headers=headers, proxy=proxy, response_class=BoundedResponse
    )
