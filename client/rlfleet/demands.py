"""Repeats a request at other workers if one worker does not meet its version demand.

A fleet's Service chooses a worker for each connection. Neither the Service nor the router reads
versions. So a repetition over the same connection reaches the same worker. These transports of httpx
repeat it over new connections. Source: docs/reference/wire.md, "Weight versions".
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time

import httpx

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_ATTEMPTS = 8
"""With the pauses in between they take about 6 seconds."""
_NO_REUSE = httpx.Limits(max_keepalive_connections=0)


class DemandTransport(httpx.BaseTransport):
    """A transport of httpx that repeats unmet demands over new connections.

    Args:
        attempts: Largest number of attempts, at least 1. The answer to the last attempt is the reply,
            so an unmet demand is 409 in the end.
        verify: As for `httpx.HTTPTransport`.

    It reaches workers directly, whatever proxy the environment names.

    >>> http = httpx.Client(transport=DemandTransport(attempts=4))
    >>> demand = Sampling(minimum="43").headers()
    >>> http.post(f"{endpoint}/v1/completions", json={}, headers=demand).status_code
    200
    """

    def __init__(self, *, attempts: int = _ATTEMPTS, verify: ssl.SSLContext | bool = True) -> None:
        self._attempts = _checked(attempts)
        self._kept = httpx.HTTPTransport(verify=verify)
        self._new = httpx.HTTPTransport(verify=verify, limits=_NO_REUSE)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as httpx calls it.

        >>> with DemandTransport() as transport:
        ...     answer = transport.handle_request(httpx.Request("POST", endpoint, json={}))
        ...     print(answer.status_code)
        ...     answer.close()
        200
        """
        request.read()
        answer = self._kept.handle_request(request)
        for number in range(1, self._attempts):
            if not _is_unmet(answer):
                break
            answer.close()
            time.sleep(_pause_seconds(number))
            answer = self._new.handle_request(request)
        return answer

    def close(self) -> None:
        """Close connections.

        >>> DemandTransport().close()
        """
        self._kept.close()
        self._new.close()


class AsyncDemandTransport(httpx.AsyncBaseTransport):
    """`DemandTransport` for `httpx.AsyncClient`.

    >>> async with httpx.AsyncClient(transport=AsyncDemandTransport()) as http:
    ...     demand = Sampling(minimum="43").headers()
    ...     print((await http.post(f"{endpoint}/v1/completions", json={}, headers=demand)).status_code)
    200
    """

    def __init__(self, *, attempts: int = _ATTEMPTS, verify: ssl.SSLContext | bool = True) -> None:
        self._attempts = _checked(attempts)
        self._kept = httpx.AsyncHTTPTransport(verify=verify)
        self._new = httpx.AsyncHTTPTransport(verify=verify, limits=_NO_REUSE)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as httpx calls it.

        >>> async with AsyncDemandTransport() as transport:
        ...     request = httpx.Request("POST", endpoint, json={})
        ...     answer = await transport.handle_async_request(request)
        ...     print(answer.status_code)
        ...     await answer.aclose()
        200
        """
        await request.aread()
        answer = await self._kept.handle_async_request(request)
        for number in range(1, self._attempts):
            if not _is_unmet(answer):
                break
            await answer.aclose()
            await asyncio.sleep(_pause_seconds(number))
            answer = await self._new.handle_async_request(request)
        return answer

    async def aclose(self) -> None:
        """Close connections.

        >>> await AsyncDemandTransport().aclose()
        """
        await self._kept.aclose()
        await self._new.aclose()


def _checked(attempts: int) -> int:
    if attempts < 1:
        raise ValueError(f"attempts is {attempts}; it must be at least 1")
    return attempts


def _is_unmet(answer: httpx.Response) -> bool:
    """Whether the worker does not meet the demand. It answers so before the first token."""
    return answer.status_code == httpx.codes.CONFLICT and "retry-after" in answer.headers


def _pause_seconds(number: int) -> float:
    """The pause after an attempt. `Retry-After` is ignored: it is about the worker that has refused."""
    longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (number - 1))
    return longest * random.uniform(0.5, 1)  # noqa: S311 - spreads the clients
