"""HTTP requests that can be cancelled at any moment without leaving a socket behind.

asyncio of Python 3.11 loses a connection whose task is cancelled between the creation of the socket
and the start of TLS; the warning comes much later, in another test. So a request that has begun gets
its answer, also without a waiting caller.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp


class Client:
    """A pool of connections to one server."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0), auto_decompress=False
        )
        self._begun: set[asyncio.Task[aiohttp.ClientResponse]] = set()

    async def close(self) -> None:
        """Wait for what has begun, and close everything."""
        await asyncio.gather(*self._begun, return_exceptions=True)
        await self._session.close()

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        """Begin a request. The caller closes the response, or reads it to its end."""
        task = asyncio.create_task(self._request(method, url, options))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            raise

    async def _request(
        self, method: str, url: str, options: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        return await self._session.request(method, url, **options)


def _forget(task: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """The caller does not wait for this answer any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
