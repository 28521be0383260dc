"""Requests of rollout clients, passed on to the fleet's router, or to its Service without one.

Only routes of the workers' public port are passed on: a router has admin routes without a key. Bodies
stream in both directions. Credentials of the RL API are for itself, so no worker gets them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from fleet_api.calls import Access, Call, path_of
from fleet_api.contract import Contract
from fleet_api.fleets import Fleet
from fleet_api.problems import Problem, busy
from fleet_api.route import Route
from fleet_operator.api import names
from fleet_worker.protocol import DATA_ROUTES, READING_TEXT_ROUTES, TEXT_ROUTES

CONNECT_SECONDS = 5.0
UPSTREAM_AUTHORIZATION = "X-Upstream-Authorization"
"""Header that becomes the `Authorization` for the worker, whose public port may have a key."""
_OWN_HEADERS = frozenset(
    {
        "authorization",
        "connection",
        "content-encoding",  # aiohttp decompresses the body
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "idempotency-key",
        "keep-alive",
        "referer",  # it may hold the key of a path
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        UPSTREAM_AUTHORIZATION.lower(),
    }
)
_OWN_PREFIXES = ("proxy-", "x-forwarded-", "x-rlfleet-")
_REPLY_HEADERS = frozenset({"content-encoding", "content-length", "content-type", "retry-after"})
"""Besides `x-…`: a tenant's image decides the rest, and clients share the address of all tenants."""

_STEERING_PREFIXES = ("x-accel-", "x-sendfile", "x-rlfleet-")
"""Not these: a proxy in front of the RL API, such as nginx, takes them for commands."""

_PROXIED = Contract({}, frozenset({400, 413, 422}), is_open=True)
Upstream = Callable[[Fleet], str]


def upstream_of(fleet: Fleet) -> str:
    """Address of the router or of the Service, from names alone: a status may say anything."""
    name = fleet.name if fleet.spec.router is None else names.router_name(fleet.name)
    return names.endpoint_url(name, fleet.namespace, fleet.spec.serving.port)


class Proxy:
    """The handler.

    Args:
        upstream: Address of a fleet, without a path.
        most_bytes: Of a request's body.
    """

    def __init__(self, upstream: Upstream, *, most_bytes: int) -> None:
        self._upstream = upstream
        self._most_bytes = most_bytes
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()

    def routes(self) -> tuple[Route, ...]:
        """All routes."""
        return tuple(
            Route(
                "GET" if path in READING_TEXT_ROUTES else "POST",
                path,
                self.pass_on,
                Access.PROXY,
                _PROXIED,
                is_proxied=True,
            )
            for path in sorted(DATA_ROUTES | TEXT_ROUTES)
        )

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Send the request on, and each part of the reply as it comes.

        Errors: Problem 413 for a body that is too long, 503 without a reply.
        """
        body = _Body(call.request, self._most_bytes)
        query = call.request.rel_url.raw_query_string
        url = self._upstream(call.fleet) + path_of(call.request) + (f"?{query}" if query else "")
        response: web.StreamResponse | None = None
        try:
            async with self._http().request(
                call.request.method,
                URL(url, encoded=True),
                data=body.parts() if call.request.body_exists else None,
                headers=_request_headers(call.request),
                allow_redirects=False,
            ) as reply:
                response = web.StreamResponse(
                    status=reply.status, headers=_reply_headers(reply.headers)
                )
                await response.prepare(call.request)
                async for part in reply.content.iter_any():
                    await response.write(part)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError) as error:
            if response is not None and response.prepared:
                # A cut stream must not look like a whole one.
                if call.request.transport is not None:
                    call.request.transport.close()
                return response
            if body.fault is not None:
                raise body.fault from error
            raise busy(
                "NoReply",
                f"the fleet {call.fleet.name!r} does not answer ({type(error).__name__}); send the "
                "request again, and see whether its workers are ready",
            ) from error

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Generations take as long as they take, and `Places` limits their number.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _Body:
    """The body of a request, part by part, up to a limit.

    `fault`: why the client's body could not be sent on.
    """

    def __init__(self, request: web.Request, most_bytes: int) -> None:
        self._request = request
        self._most_bytes = most_bytes
        self.fault: Exception | None = None
        if (request.content_length or 0) > most_bytes:
            raise self._too_long()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts as they come, decompressed. Ends with an error after the limit."""
        size = 0
        try:
            async for part in self._request.content.iter_any():
                size += len(part)
                if size > self._most_bytes:
                    raise self._too_long()
                yield part
        except (Problem, web.RequestPayloadError) as error:
            self.fault = error
            raise

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "RequestEntityTooLarge",
            f"the body has more than {self._most_bytes} bytes; send a smaller one",
        )


def _request_headers(request: web.Request) -> CIMultiDict[str]:
    """Headers for the worker: all except those of this connection and of the RL API."""
    named = {n.strip().lower() for n in request.headers.get("Connection", "").split(",")}
    headers = CIMultiDict(
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in _OWN_HEADERS | named and not name.lower().startswith(_OWN_PREFIXES)
    )
    is_compressed = "Content-Encoding" in request.headers
    if request.content_length is not None and request.body_exists and not is_compressed:
        headers["Content-Length"] = str(request.content_length)
    if UPSTREAM_AUTHORIZATION in request.headers:
        headers["Authorization"] = request.headers[UPSTREAM_AUTHORIZATION]
    return headers


def _reply_headers(found: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    headers = CIMultiDict(
        (name, value)
        for name, value in found.items()
        if name.lower() in _REPLY_HEADERS
        or (name.lower().startswith("x-") and not name.lower().startswith(_STEERING_PREFIXES))
    )
    headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
    return headers
