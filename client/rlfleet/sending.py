"""Common parts of all requests: connections, errors of the transport, and what proxies answer."""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import httpx

from rlfleet.bounded_answers import Body
from rlfleet.errors import NotConfigured, RlfleetError, Unavailable

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
_TIMEOUT = httpx.Timeout(CONNECT_SECONDS, read=ANSWER_SECONDS)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""Each watch keeps a connection, and a process such as the RL API has hundreds of them."""
_AROUND = "or name the server in NO_PROXY, if it is reached without the proxy"
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
T = TypeVar("T")
Check = Callable[[httpx.Response], None]
"""Raises unless an answer may be read as a stream."""


class Sending(ABC):
    """The base of a place. Both ways of sending implement it. `request`: arguments for httpx."""

    def monotonic(self) -> float:
        """The monotonic clock of this machine."""
        return time.monotonic()

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """See `Place`."""

    @abstractmethod
    async def in_background(self, work: Callable[[], T]) -> T:
        """See `Place`."""

    @abstractmethod
    async def close(self) -> None:
        """See `Place`."""

    @abstractmethod
    async def _answer(
        self, request: dict[str, Any], max_bytes: int | None = None
    ) -> httpx.Response:
        """The whole answer. Errors: those of httpx; TooLarge for more than `max_bytes`."""

    @abstractmethod
    def _chunks(self, request: dict[str, Any], check: Check) -> AsyncGenerator[bytes]:
        """The bytes of an answer as they come. Errors: those of httpx, and of `check`."""


class BlockingPlace(Sending):
    """Sends, waits and works in the caller's thread: its coroutines never suspend."""

    _http: httpx.Client

    async def sleep(self, seconds: float) -> None:
        """See `Place`."""
        time.sleep(seconds)  # noqa: ASYNC251 - as everything here

    async def in_background(self, work: Callable[[], T]) -> T:
        """See `Place`."""
        return work()

    async def close(self) -> None:
        """See `Place`."""
        self._http.close()

    async def _answer(
        self, request: dict[str, Any], max_bytes: int | None = None
    ) -> httpx.Response:
        if max_bytes is None:
            return self._http.request(**request)
        body = Body(request, max_bytes)
        with self._http.stream(**request) as answer:
            for part in answer.iter_bytes():
                body.add(part)
        return body.of(answer)

    async def _chunks(self, request: dict[str, Any], check: Check) -> AsyncGenerator[bytes]:
        with self._http.stream(**request) as answer:
            if not answer.is_success:
                answer.read()
            check(answer)
            for chunk in answer.iter_bytes():
                yield chunk


class AsyncPlace(Sending):
    """Sends, waits and works on the running event loop of asyncio."""

    _http: httpx.AsyncClient

    async def sleep(self, seconds: float) -> None:
        """See `Place`."""
        await asyncio.sleep(seconds)

    async def in_background(self, work: Callable[[], T]) -> T:
        """See `Place`."""
        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """See `Place`."""
        await self._http.aclose()

    async def _answer(
        self, request: dict[str, Any], max_bytes: int | None = None
    ) -> httpx.Response:
        if max_bytes is None:
            return await self._http.request(**request)
        body = Body(request, max_bytes)
        async with self._http.stream(**request) as answer:
            async for part in answer.aiter_bytes():
                body.add(part)
        return body.of(answer)

    async def _chunks(self, request: dict[str, Any], check: Check) -> AsyncGenerator[bytes]:
        async with self._http.stream(**request) as answer:
            if not answer.is_success:
                await answer.aread()
            check(answer)
            async for chunk in answer.aiter_bytes():
                yield chunk


def blocking_http(tls: ssl.SSLContext, proxy: str | None) -> httpx.Client:
    """Connections to one server. `proxy`: as `Access.proxy`; httpx reads no variable. Errors: NotConfigured."""

    def check(answer: httpx.Response) -> None:
        if proxy is not None and _may_be_of_a_proxy(answer):
            answer.read()
            _check_proxy(answer, proxy)

    hooks = {"response": [check]}
    return _made(
        lambda: httpx.Client(
            verify=tls, proxy=proxy, trust_env=False, timeout=_TIMEOUT, event_hooks=hooks
        ),
        proxy,
    )


def async_http(
    tls: ssl.SSLContext, proxy: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """`blocking_http` for asyncio. `transport`: sends what goes through no proxy; None for that of httpx."""

    async def check(answer: httpx.Response) -> None:
        if proxy is not None and _may_be_of_a_proxy(answer):
            await answer.aread()
            _check_proxy(answer, proxy)

    hooks = {"response": [check]}
    return _made(
        lambda: httpx.AsyncClient(
            verify=tls,
            proxy=proxy,
            trust_env=False,
            timeout=_TIMEOUT,
            limits=_LIMITS,
            event_hooks=hooks,
            transport=transport,
        ),
        proxy,
    )


def _may_be_of_a_proxy(answer: httpx.Response) -> bool:
    """Whether an answer is an error or a page, and came without TLS.

    With TLS a proxy refuses the connection instead (`broken`).
    """
    is_page = "html" in answer.headers.get("content-type", "")
    return answer.request.url.scheme == "http" and (is_page or not answer.is_success)


def _check_proxy(answer: httpx.Response, proxy: str) -> None:
    """Check that an error is one of the server. Errors: NotConfigured, or Unavailable for 5xx."""
    if _is_of_the_server(answer):
        return
    url = answer.request.url
    kind = Unavailable if answer.is_server_error else NotConfigured
    raise kind(
        f"the proxy {_shown(proxy)} answers HTTP {answer.status_code} for {url.scheme}://"
        f"{url.netloc.decode()}; repair the proxy, {_AROUND}"
    )


def _is_of_the_server(answer: httpx.Response) -> bool:
    """Whether an error has the form of the API server's, or of the RL API's (RFC 9457)."""
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        return True
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("kind") == "Status"


def broken(
    error: httpx.TransportError, server: str, remedy: str, proxy: str | None
) -> RlfleetError:
    """The error for a failure to send or to receive. `remedy`: for failures that no retry can repair."""
    if proxy is not None and isinstance(error, httpx.ProxyError):
        kind = Unavailable if str(error).startswith("5") else NotConfigured
        return kind(
            f"the proxy {_shown(proxy)} refuses the connection to {server}: {error}; "
            f"repair the proxy, {_AROUND}"
        )
    through = "" if proxy is None else f" through the proxy {_shown(proxy)}"
    message = f"{server} does not answer{through}: {type(error).__name__} {error}".rstrip()
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ssl.SSLCertVerificationError, httpx.UnsupportedProtocol)):
            return NotConfigured(f"{message}; {remedy}")
        cause = cause.__cause__ or cause.__context__
    around = "" if proxy is None else f", {_AROUND}"
    if isinstance(error, httpx.RemoteProtocolError) and server.startswith("http://"):
        around += "; if it has TLS, its address begins with https://"
    return Unavailable(f"{message}; check that it runs, and that this machine can reach it{around}")


def _made(make: Callable[[], H], proxy: str | None) -> H:
    try:
        return make()
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise NotConfigured(
            f"the proxy {_shown(proxy or '')} cannot be used: {error}; name it as http://HOST:PORT"
        ) from error


def _shown(proxy: str) -> str:
    """The proxy's URL without its password."""
    scheme, _, rest = proxy.rpartition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
