"""The API server as the client library has it, over connections of aiohttp instead of those of httpx.

Each request of a tenant is some requests to the API server, and all of them run in one event loop. With httpx's own
connections one takes four times as much of it, and more with each open watch.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager

import aiohttp
import httpx

from fleet_api.loop_time import turn
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import Access
from rlfleet.ports import Change, Json, Kind


class ApiServer(AsyncKube):
    """The API server. The changes of a watch come at the pace of their tenant's share of the event loop.

    Args: as `AsyncKube`.
    """

    def __init__(
        self, access: Access, field_manager: str, max_bytes: int, read: Callable[[bytes], Json]
    ) -> None:
        super().__init__(access, field_manager, max_bytes, read, Transport(access.tls))

    async def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        """GET, as a stream."""
        async with aclosing(super().watch(kind, name, resource_version, seconds)) as changes:
            async for change in changes:
                yield change
                await turn()


class Transport(httpx.AsyncBaseTransport):
    """Sends requests over TLS, or without it to a server at `http`. `tls`: trust and certificate."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Errors: httpx.TransportError."""
        limits = request.extensions["timeout"]
        with _as_httpx():
            answer = await self._http().request(
                request.method,
                str(request.url),
                headers=request.headers.multi_items(),
                data=request.content or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=limits["connect"], sock_read=limits["read"]
                ),
                server_hostname=request.extensions.get("sni_hostname"),
            )
        return httpx.Response(
            answer.status, headers=answer.raw_headers, stream=_Body(answer), request=request
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _Body(httpx.AsyncByteStream):
    """The body of an answer. Closing it before its end closes its connection."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._answer.content.iter_any():
                yield part

    async def aclose(self) -> None:
        self._answer.close()  # a connection whose answer is read to its end is kept


@contextmanager
def _as_httpx() -> Iterator[None]:
    """The errors of aiohttp as those of httpx."""
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except aiohttp.ClientConnectionError as error:
        raise httpx.ConnectError(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise httpx.ReadError(str(error)) from error
